// Caffe's Datum (a protobuf message) around each value: the image's bytes and its label.
#pragma once

#include "index/walk_lmdb.hpp"

namespace penstock::lmdb {

// Narrow offset and length of each row to field `data`, and fill `label` and `shape`. The label
// comes after the data, so only head and tail of large values are read.
void parse_datums(Source& source, bool concurrent, unsigned threads, Walk& walk);

}  // namespace penstock::lmdb
