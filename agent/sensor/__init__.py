"""From the kernel to events: load the probes, poll the ring, decode the bytes."""
