// UTF-8: checked, counted, and widened to the units in which Python keeps strings.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace penstock {

// Text that is valid UTF-8.
struct Utf8Text {
  std::span<const char> bytes;
  std::size_t characters = 0;
  unsigned char lead = 0;  // the greatest byte: it says how wide the widest character is

  // Bytes of a unit that holds any of the characters: 1 up to U+00FF, 2 up to U+FFFF, else 4.
  unsigned unit_bytes() const { return lead < 0xc4 ? 1 : lead < 0xf0 ? 2 : 4; }
  bool is_ascii() const { return lead < 0x80; }
};

// Check that the bytes are UTF-8, without surrogates and longer forms than needed; and count them.
std::optional<Utf8Text> measure_utf8(std::span<const char> bytes);

// Write each character as one unit of text.unit_bytes() to `out`, which has room for them all.
void widen_utf8(const Utf8Text& text, void* out);

}  // namespace penstock
