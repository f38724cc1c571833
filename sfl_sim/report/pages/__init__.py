"""What each page shows: its panels, its headlines and its tables."""
