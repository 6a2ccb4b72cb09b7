"""What was measured: records on the disk, and the statistics that are computed from them."""
