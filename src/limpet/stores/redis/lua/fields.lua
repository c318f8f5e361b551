-- The fields of a head, in the order that its checksum takes them, and those of earlier formats. `scripts.py` fills in
-- the values.
local FIELDS = {$FIELDS}
local OLDER_FIELDS = {$OLDER_FIELDS}

-- How many of them the checksum covers, and which ones it covered in each earlier format.
local CHECKSUMMED_FIELDS = $CHECKSUMMED_FIELDS
local COVERED_BEFORE = {
  ['1'] = {fields = OLDER_FIELDS, count = $CHECKSUMMED_IN_FORMAT_1},
  ['2'] = {fields = OLDER_FIELDS, count = $CHECKSUMMED_IN_FORMAT_2},
  ['3'] = {fields = FIELDS, count = $CHECKSUMMED_IN_FORMAT_3},
}
local FORMAT = $FORMAT
local DEFAULT_QUEUE = $DEFAULT_QUEUE
