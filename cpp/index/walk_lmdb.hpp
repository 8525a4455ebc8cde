// The records of an LMDB environment, in key order, found without liblmdb.
//
// The tree is descended level by level: the pages of a level are read in file order, in merged
// runs, by several threads, and their records are put back into key order. Nothing in the file is
// believed before it is checked, each page is reached once, and the nodes of a page may not take
// more than the page, so that time and memory are bounded by the size of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ground/parse_error.hpp"
#include "index/source.hpp"

namespace penstock::lmdb {

enum class Verify {
  automatic,  // on if several threads may read
  on,         // the header of each value on pages of its own is read and compared
  off,
};

struct Options {
  std::optional<std::string> database;  // none: the main one, which must hold no other databases
  std::vector<std::string> exclude;     // keys that are no samples
  bool file_order = false;              // by offset, not by key
  bool datum = false;                   // values are Caffe's Datum: give their field `data`
  Verify verify = Verify::automatic;
  unsigned threads = 0;    // 0: as many as there are processors, up to 8
  bool concurrent = true;  // the source may be read by several threads, and cheaply in small parts
};

// Memory that is not cleared before it is filled.
template <typename T>
struct Column {
  std::unique_ptr<T[]> data;
  std::size_t size = 0;

  Column() = default;
  explicit Column(std::size_t n) : data(std::make_unique_for_overwrite<T[]>(n)), size(n) {}
  T* begin() { return data.get(); }
  const T* begin() const { return data.get(); }
  T& operator[](std::size_t i) { return data[i]; }
  const T& operator[](std::size_t i) const { return data[i]; }
};

struct Walk {
  // One row a record; key i ends at `key_ends[i]` of `keys`.
  Column<std::uint8_t> keys;
  Column<std::int64_t> key_ends;
  Column<std::int64_t> offset;
  Column<std::int64_t> length;
  Column<std::int64_t> label;  // with `datum` only

  std::uint64_t page_bytes = 0;
  std::uint64_t version = 0;
  std::uint64_t txnid = 0;    // of the last commit
  std::uint64_t entries = 0;  // records, excluded ones too
  bool integer_keys = false;
  bool labelled = false;              // with `datum`: some record has a label
  std::int64_t shape[3] = {0, 0, 0};  // with `datum`: of all raw images, or zeros

  std::optional<ParseError> parse_error;
  int read_error = 0;  // errno if reading failed
};

Walk walk(Source& source, const Options& options);

}  // namespace penstock::lmdb
