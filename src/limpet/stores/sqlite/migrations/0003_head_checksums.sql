-- A checksum of each head, renewed whenever the head changes; NULL until it first does. From then on "sequence"
-- is the number of the newest record at that change, so that a missing record is noticed.
ALTER TABLE runs ADD COLUMN sum INTEGER;
-- A later migration that adds a column to heads, or changes them, has to set "sum" to NULL in all rows.
