-- The fields of a head, in the order that its checksum takes them. `scripts.py` fills in the values.
local FIELDS = {$FIELDS}

-- How many of them the checksum covers, and how many it covered in format 1.
local CHECKSUMMED_FIELDS = $CHECKSUMMED_FIELDS
local CHECKSUMMED_IN_FORMAT_1 = $CHECKSUMMED_IN_FORMAT_1
