"""What can be known about a schedule without running it. No MPI in this room."""
