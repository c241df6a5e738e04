"""The one downloader of all sources: parallel ranges that resume after anything, hashed while they arrive."""
