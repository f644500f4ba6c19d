"""Measuring on real ranks: validation against MPI_Allreduce and exact arithmetic, and timing beside it."""
