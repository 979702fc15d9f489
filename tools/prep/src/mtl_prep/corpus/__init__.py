"""What a corpus is made of, and how it is read: files and stores, packings, formats, records, units."""
