"""Statistics of data that lie on many ranks: exact, and the same bits for any number of ranks, files and parts."""
