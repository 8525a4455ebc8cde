// One header block of a tar archive, and the records of a pax header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::tar {

inline constexpr std::uint64_t block_bytes = 512;

// Whether a block is all zeros, as those that end an archive are.
bool is_zero(const std::byte* block);

// Whether the checksum that a header holds is that of its bytes, summed unsigned or, as some old
// writers did, signed.
bool checksum_matches(const std::byte* block);

struct Header {
  char type = 0;
  std::uint64_t size = 0;
  std::string_view name, prefix;  // prefix/name; in the block that was parsed
};

// What is wrong with a header whose checksum is right, or null.
const char* parse_header(const std::byte* block, Header& out);

// What pax says of members. Unset: said nothing; an empty path counts as unset.
struct Pax {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
  bool sparse = false;
};

// Takes over what the records say, or says what is wrong with them.
const char* parse_pax(std::string_view records, Pax& out);

}  // namespace penstock::tar
