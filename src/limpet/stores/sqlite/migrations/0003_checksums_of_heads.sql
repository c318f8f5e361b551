-- A checksum of each head, made anew whenever the head changes; NULL until it first does. From then on "sequence" is
-- the number of the newest record as of that change, so that it is noticed if that record is lost.
ALTER TABLE runs ADD COLUMN sum INTEGER;
-- A later migration that adds a column to heads, or changes them, has to make "sum" NULL in all rows.
