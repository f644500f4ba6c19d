"""Running a schedule on real buffers. No module here imports MPI before the first communicator is passed in."""
