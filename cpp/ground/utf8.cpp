#include "ground/utf8.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace penstock {
namespace {

// Number of bytes below 0x80 at the start.
std::size_t count_ascii(const unsigned char* at, std::size_t size) {
  std::size_t done = 0;
#if defined(__x86_64__)
  for (; done + 64 <= size; done += 64) {
    const auto* pieces = reinterpret_cast<const __m128i*>(at + done);
    const auto low = _mm_or_si128(_mm_loadu_si128(pieces), _mm_loadu_si128(pieces + 1));
    const auto rest = _mm_or_si128(_mm_loadu_si128(pieces + 2), _mm_loadu_si128(pieces + 3));
    if (_mm_movemask_epi8(_mm_or_si128(low, rest)) != 0) break;
  }
  for (; done + 16 <= size; done += 16) {
    const auto piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + done));
    const auto high = static_cast<unsigned>(_mm_movemask_epi8(piece));
    if (high != 0) return done + static_cast<std::size_t>(std::countr_zero(high));
  }
#else
  for (std::uint64_t piece; done + 8 <= size; done += 8) {
    std::memcpy(&piece, at + done, 8);
    if ((piece & 0x8080808080808080) != 0) break;
  }
#endif
  while (done < size && at[done] < 0x80) ++done;
  return done;
}

bool continues(unsigned char b) { return (b & 0xc0) == 0x80; }

// Bytes of the character at the start, which is not ASCII; 0 if it is none.
std::size_t measure_character(const unsigned char* at, std::size_t left) {
  const unsigned char lead = at[0];
  if (lead < 0xe0) return lead >= 0xc2 && left >= 2 && continues(at[1]) ? 2 : 0;
  if (lead < 0xf0) {
    if (left < 3 || !continues(at[1]) || !continues(at[2])) return 0;
    const bool wrong = (lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f);
    return wrong ? 0 : 3;
  }
  if (lead > 0xf4 || left < 4 || !continues(at[1]) || !continues(at[2]) || !continues(at[3]))
    return 0;
  const bool wrong = (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f);
  return wrong ? 0 : 4;
}

// Widen the bytes below 0x80 at the start; their number.
template <class Unit>
std::size_t widen_ascii(const unsigned char* at, std::size_t size, Unit* out) {
  std::size_t done = 0;
#if defined(__x86_64__)
  if constexpr (sizeof(Unit) == 2) {
    const __m128i zero = _mm_setzero_si128();
    for (; done + 16 <= size; done += 16) {
      const auto piece = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + done));
      if (_mm_movemask_epi8(piece) != 0) break;
      auto* to = reinterpret_cast<__m128i*>(out + done);
      _mm_storeu_si128(to, _mm_unpacklo_epi8(piece, zero));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(piece, zero));
    }
  }
#endif
  for (; done < size && at[done] < 0x80; ++done) out[done] = at[done];
  return done;
}

template <class Unit>
void widen(std::span<const char> bytes, Unit* out) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = at + bytes.size();
  while (at < end) {
    const std::size_t plain = widen_ascii(at, static_cast<std::size_t>(end - at), out);
    at += plain;
    out += plain;
    for (; at < end && *at >= 0x80; ++out) {
      std::uint32_t code;
      if (*at < 0xe0) {
        code = (at[0] & 0x1fU) << 6 | (at[1] & 0x3fU);
        at += 2;
      } else if (*at < 0xf0) {
        code = (at[0] & 0x0fU) << 12 | (at[1] & 0x3fU) << 6 | (at[2] & 0x3fU);
        at += 3;
      } else {
        code = (at[0] & 0x07U) << 18 | (at[1] & 0x3fU) << 12 | (at[2] & 0x3fU) << 6 |
               (at[3] & 0x3fU);
        at += 4;
      }
      *out = static_cast<Unit>(code);
    }
  }
}

}  // namespace

std::optional<Utf8Text> measure_utf8(std::span<const char> bytes) {
  Utf8Text found{bytes};
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* end = at + bytes.size();
  while (at < end) {
    const std::size_t plain = count_ascii(at, static_cast<std::size_t>(end - at));
    found.characters += plain;
    at += plain;
    for (; at < end && *at >= 0x80; ++found.characters) {
      const std::size_t size = measure_character(at, static_cast<std::size_t>(end - at));
      if (size == 0) return std::nullopt;
      found.lead = std::max(found.lead, *at);
      at += size;
    }
  }
  return found;
}

void widen_utf8(const Utf8Text& text, void* out) {
  if (text.is_ascii()) {
    if (!text.bytes.empty()) std::memcpy(out, text.bytes.data(), text.bytes.size());
  } else if (text.unit_bytes() == 1) {
    widen(text.bytes, static_cast<std::uint8_t*>(out));
  } else if (text.unit_bytes() == 2) {
    widen(text.bytes, static_cast<std::uint16_t*>(out));
  } else {
    widen(text.bytes, static_cast<std::uint32_t*>(out));
  }
}

}  // namespace penstock
