"""Other people's tools. Each module needs its own extra and is imported by nobody else."""
