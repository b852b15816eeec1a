-- Last step: record what the schema consists of, for later comparison.
INSERT INTO leasehold.original_shape
SELECT kind, name, shape, portable, current_setting('server_version_num')::integer / 10000
  FROM leasehold.shape();
