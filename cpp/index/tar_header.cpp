#include "index/tar_header.hpp"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::tar {
namespace {

constexpr std::size_t checksum_at = 148, checksum_end = 156;
static_assert(checksum_end - checksum_at == 8);

std::string_view text(const std::byte* block, std::size_t at, std::size_t length) {
  const auto* p = reinterpret_cast<const char*>(block) + at;
  return {p, ::strnlen(p, length)};
}

// Octal, spaces before and a space or NUL behind it; nothing is 0.
bool octal(std::string_view field, std::uint64_t& value) {
  value = 0;
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  for (const char c : field) {
    if (c == ' ' || c == '\0') return true;
    if (c < '0' || c > '7' || value >> 60 != 0) return false;
    value = value * 8 + static_cast<std::uint64_t>(c - '0');
  }
  return true;
}

// The sum of 8 bytes.
std::uint32_t word_sum(const std::byte* bytes) {
  constexpr std::uint64_t even = 0x00ff00ff00ff00ff;
  std::uint64_t word;
  std::memcpy(&word, bytes, 8);
  const std::uint64_t lanes = (word & even) + (word >> 8 & even);
  return static_cast<std::uint32_t>(lanes * 0x0001000100010001 >> 48);  // of four lanes of 16 bits
}

// The sum of a block. With SSE2, which is not a matter of choice on x86-64, 16 bytes at a time.
std::uint32_t block_sum(const std::byte* block) {
#if defined(__SSE2__)
  __m128i halves = _mm_setzero_si128();
  for (std::size_t i = 0; i < block_bytes; i += 16) {
    const auto* at = reinterpret_cast<const __m128i*>(block + i);
    halves = _mm_add_epi64(halves, _mm_sad_epu8(_mm_loadu_si128(at), _mm_setzero_si128()));
  }
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(halves) +
                                    _mm_cvtsi128_si32(_mm_unpackhi_epi64(halves, halves)));
#else
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < block_bytes; i += 8) sum += word_sum(block + i);
  return sum;
#endif
}

const char* parse_size(const std::byte* block, std::uint64_t& size) {
  constexpr std::size_t at = 124, length = 12;
  const auto first = std::to_integer<unsigned>(block[at]);
  if (first == 0x80) {
    size = 0;
    for (std::size_t i = 1; i < length; ++i) {
      if (size >> 55 != 0) return "its size in base 256 is larger than any file";
      size = size << 8 | std::to_integer<std::uint64_t>(block[at + i]);
    }
    return nullptr;
  }
  if (first == 0xff) return "its size in base 256 is negative";
  if (!octal({reinterpret_cast<const char*>(block) + at, length}, size))
    return "its size is no octal number";
  return nullptr;
}

}  // namespace

bool is_zero(const std::byte* block) {
  unsigned char any = 0;
  for (std::size_t i = 0; i < block_bytes; ++i) any |= std::to_integer<unsigned char>(block[i]);
  return any == 0;
}

bool checksum_matches(const std::byte* block) {
  std::uint64_t stored = 0;
  if (!octal({reinterpret_cast<const char*>(block) + checksum_at, checksum_end - checksum_at},
             stored))
    return false;
  const std::uint32_t sum = block_sum(block) - word_sum(block + checksum_at) +
                            ' ' * (checksum_end - checksum_at);
  if (sum == stored) return true;
  std::uint32_t negative = 0;  // bytes that a signed sum takes for 256 less
  for (std::size_t i = 0; i < block_bytes; ++i)
    negative += (i < checksum_at || i >= checksum_end) && block[i] >= std::byte{0x80};
  return static_cast<std::int64_t>(stored) ==
         static_cast<std::int64_t>(sum) - 256 * static_cast<std::int64_t>(negative);
}

const char* parse_header(const std::byte* block, Header& out) {
  out.type = std::to_integer<char>(block[156]);
  out.name = text(block, 0, 100);
  out.prefix = {};
  // GNU's headers have times where ustar's have a prefix.
  if (std::memcmp(block + 257, "ustar", 6) == 0) out.prefix = text(block, 345, 155);
  return parse_size(block, out.size);
}

const char* parse_pax(std::string_view records, Pax& out) {
  while (!records.empty()) {
    if (records.front() == '\0') {
      // Some writers fill up with zeros.
      return records.find_first_not_of('\0') == records.npos ? nullptr
                                                             : "a pax record begins with a zero byte";
    }
    std::size_t length = 0, digits = 0;
    for (; digits < records.size() && records[digits] >= '0' && records[digits] <= '9'; ++digits) {
      length = length * 10 + static_cast<std::size_t>(records[digits] - '0');
      if (length > records.size()) return "a pax record is longer than its header";
    }
    if (digits == 0 || digits >= records.size() || records[digits] != ' ')
      return "a pax record has no length";
    if (length < digits + 2 || records[length - 1] != '\n') return "a pax record has no end";
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == record.npos) return "a pax record has no value";
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") {
      out.path = std::string(value);
    } else if (key == "size") {
      std::uint64_t size = 0;
      for (const char c : value) {
        if (c < '0' || c > '9' || size > (std::uint64_t{1} << 63) / 10)
          return "the size that pax gives is no number";
        size = size * 10 + static_cast<std::uint64_t>(c - '0');
      }
      out.size = value.empty() ? std::nullopt : std::optional(size);
    } else if (key.starts_with("GNU.sparse.")) {
      out.sparse = true;
    }
  }
  return nullptr;
}

}  // namespace penstock::tar
