// One header block of a tar archive, and the records of a pax header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::tar {

inline constexpr std::uint64_t block_bytes = 512;

// True if a block is all zeros, like the blocks that end an archive.
bool is_zero(const std::byte* block);

// True if a header holds the checksum of its bytes, summed unsigned or, as some old writers did,
// signed.
bool checksum_matches(const std::byte* block);

struct Header {
  char type = 0;
  std::uint64_t size = 0;
  std::string_view name, prefix;  // prefix/name; in the block that was parsed
};

// Parse a header whose checksum is right; return a description of its damage, or null.
const char* parse_header(const std::byte* block, Header& out);

// Values of pax records for members. Unset: no record gives the value; an empty path counts as
// unset.
struct Pax {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};

// Parse pax records into `out`; return a description of their damage, or null.
const char* parse_pax(std::string_view records, Pax& out);

}  // namespace penstock::tar
