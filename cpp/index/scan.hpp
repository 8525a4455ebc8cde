// The names, sizes and times of many files, asked for by several threads: on shared storage each
// answer takes a round trip, so that one thread needs minutes for what many need seconds for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// Many paths in one blob: path i is text[ends[i-1], ends[i]).
struct Names {
  std::string text;
  std::vector<std::int64_t> ends;
};

// A path that could not be listed or stat'ed. Errors are values; the caller decides.
struct ScanFailure {
  std::string path;
  int error;
};

struct ScanOptions {
  std::vector<std::string> extensions;  // lower case, with dot; empty: every file
  unsigned threads = 1;
};

// Files and folders below a root, each in ascending order of path bytes. Folders include the root,
// whose path is empty; a folder's time was read before its entries, so that a change during the
// scan shows as a later time. `folder[i]` is the number of the folder of file i.
struct Listing {
  Names files;
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> mtime_ns;
  std::vector<std::int32_t> folder;
  Names folders;
  std::vector<std::int64_t> folder_mtime_ns;
  std::vector<ScanFailure> failures;  // in order of path
  bool cancelled = false;
};

// Called on the calling thread at the start and then about ten times a second, with the number of
// files seen; false cancels.
using ScanTick = std::function<bool(std::uint64_t files)>;

// List the regular files below `root`. Hidden entries and *.penstock are left out. Links are
// followed; a link to a folder that contains it is left out, since its files are listed already.
Listing scan_folder(const std::string& root, const ScanOptions& options, const ScanTick& tick);

// Sizes and times of named files; names are relative to `root` (empty: the root itself) or
// absolute.
struct Stats {
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> mtime_ns;
  std::vector<std::int32_t> error;  // errno; or EISDIR, EINVAL: size and time are those of a non-file
};

Stats stat_files(const std::string& root, std::span<const char> text,
           std::span<const std::int64_t> ends, unsigned threads);

}  // namespace penstock
