-- The fields of a head, in the order that its checksum takes them, and those of earlier formats. `scripts.py` fills in
-- the values.
local FIELDS = {$FIELDS}
local OLDER_FIELDS = {$OLDER_FIELDS}

-- How many of them the checksum covers, and how many of the older ones it covered in each format.
local CHECKSUMMED_FIELDS = $CHECKSUMMED_FIELDS
local CHECKSUMMED_BEFORE = {['1'] = $CHECKSUMMED_IN_FORMAT_1, ['2'] = $CHECKSUMMED_IN_FORMAT_2}
