"""What a process is in a training job, and which job that is."""
