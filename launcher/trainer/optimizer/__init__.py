"""The optimizer, its state split over the data-parallel ranks."""
