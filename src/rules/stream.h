/* stream.h: what is kept of a long output stream. */
#ifndef LHI_STREAM_H
#define LHI_STREAM_H

#include <leasehold.h>

/* Cut the stream to at most `most` bytes: a quarter from its beginning, the rest from its end. Fills in
 * `bytes`, and never cuts through a UTF-8 character. */
lh_stream lhi_stream_cut(const lh_stream *stream, int64_t most);

#endif
