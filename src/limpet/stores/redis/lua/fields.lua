-- The fields of a head, in the order that its checksum takes them. `scripts.py` fills in the values.
local FIELDS = {$FIELDS}

-- How many of them the checksum covers, and how many it covered in format 1.
local SEALED = $SEALED
local SEALED_IN_FORMAT_1 = $SEALED_IN_FORMAT_1
