-- Last: what all of it is made of, to be compared with later.
INSERT INTO leasehold.original_shape
SELECT kind, name, shape, portable, current_setting('server_version_num')::integer / 10000
  FROM leasehold.shape();
