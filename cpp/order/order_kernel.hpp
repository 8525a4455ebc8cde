// MixFeistel over lanes of 32-bit words, written once for every instruction set.
//
// V supplies the lanes (see order.cpp for the plainest). Each including file is compiled with its
// own flags, so nothing here may become a symbol that the linker could share between them: V lives
// in an anonymous namespace, and no inline function of the standard library is called (hence
// pointers instead of spans).
#pragma once

#include <cstddef>
#include <cstdint>

#include "order/order.hpp"

namespace penstock {

// One pass of the cipher over V::width * U values at a time. `narrow` is for domains up to 2^32:
// values fit one word, and k <= 16.
template <class V, bool inverted, bool narrow>
struct Feistel {
  using Words = typename V::Words;

  static constexpr std::size_t unroll = V::unroll;  // independent chains hide the multiplications
  static constexpr std::size_t block = V::width * unroll;
  static constexpr std::size_t chunk = 1024;  // values between walks; their strays fit the stack
  static_assert(block <= 64, "a block's strays are one 64-bit mask");
  static_assert(chunk % block == 0 && chunk <= 65536, "strays are numbered by 16 bits");

  std::uint64_t last;
  std::uint32_t bits;
  Words mask, left_count, drop, first, second;
  Words keys[8];

  explicit Feistel(const Cipher& cipher)
      : last(cipher.count - 1),
        bits(cipher.right_bits),
        mask(V::all((std::uint32_t{1} << cipher.right_bits) - 1)),
        left_count(V::all(cipher.left_count)),
        drop(V::all(32 - cipher.right_bits)),
        first(V::all(0x85EBCA6Bu)),
        second(V::all(0xC2B2AE35u)) {
    for (std::size_t r = 0; r < 8; ++r) keys[r] = V::all(cipher.keys.data()[r]);
  }

  Words mixed(Words x, Words key) const {
    x = V::mul(V::exclusive(x, key), first);
    return V::mul(V::exclusive(x, V::template right<15>(x)), second);
  }

  Words hash(Words x, Words key) const {
    x = mixed(x, key);
    return V::exclusive(x, V::template right<16>(x));
  }

  // Multiply-high takes the hash to [0, a) without a division; the minimum undoes a wrap, since
  // a <= 2^31 leaves the wrapped of the two candidates the larger.
  Words turned_left(Words left, Words right, Words key) const {
    const Words f = V::high(hash(right, key), left_count);
    if constexpr (inverted) {
      left = V::sub(left, f);
      return V::min(left, V::add(left, left_count));
    } else {
      left = V::add(left, f);
      return V::min(left, V::sub(left, left_count));
    }
  }

  // The top k bits of the hash; for k <= 16 its last step does not reach them.
  Words turned_right(Words left, Words right, Words key) const {
    const Words h = narrow ? mixed(left, key) : hash(left, key);
    return V::exclusive(right, V::right(h, drop));
  }

  template <std::size_t U>
  void rounds(Words (&left)[U], Words (&right)[U]) const {
    for (int r = inverted ? 6 : 0; inverted ? r >= 0 : r < 8; r += inverted ? -2 : 2) {
      if constexpr (inverted)
        for (std::size_t u = 0; u < U; ++u)
          right[u] = turned_right(left[u], right[u], keys[r + 1]);
      for (std::size_t u = 0; u < U; ++u) left[u] = turned_left(left[u], right[u], keys[r]);
      if constexpr (!inverted)
        for (std::size_t u = 0; u < U; ++u)
          right[u] = turned_right(left[u], right[u], keys[r + 1]);
    }
  }

  // Map V::width * U values once; return a bit for each stray (a value above `last`).
  template <std::size_t U>
  std::uint64_t pass(const std::uint64_t* in, std::uint64_t* out) const {
    Words left[U], right[U];
    for (std::size_t u = 0; u < U; ++u) {
      right[u] = V::low(in + u * V::width);
      left[u] = narrow ? V::right(right[u], V::all(bits)) : V::low(in + u * V::width, bits);
      right[u] = V::both(right[u], mask);
    }
    rounds(left, right);
    std::uint64_t strays = 0;
    for (std::size_t u = 0; u < U; ++u) {
      std::uint64_t above;
      if constexpr (narrow) {
        const Words v = V::either(V::left(left[u], V::all(bits)), right[u]);
        above = V::above(v, V::all(static_cast<std::uint32_t>(last)));
        V::store(v, out + u * V::width);
      } else {
        above = V::store(left[u], right[u], bits, last, out + u * V::width);
      }
      strays |= above << (u * V::width);
    }
    return strays;
  }

  // Map size <= chunk values once; write the numbers of the strays and return their count.
  std::size_t once(const std::uint64_t* in, std::uint64_t* out, std::size_t size,
                   std::uint16_t* strays) const {
    std::size_t count = 0, base = 0;
    const auto note = [&](std::uint64_t found) {
      for (; found != 0; found &= found - 1)
        strays[count++] =
            static_cast<std::uint16_t>(base + static_cast<std::size_t>(__builtin_ctzll(found)));
    };
    for (; base + block <= size; base += block) note(pass<unroll>(in + base, out + base));
    for (; base < size; base += V::width) {
      const std::size_t rest = size - base < V::width ? size - base : V::width;
      std::uint64_t values[V::width] = {};
      for (std::size_t i = 0; i < rest; ++i) values[i] = in[base + i];
      note(pass<1>(values, values) & (~std::uint64_t{0} >> (64 - rest)));
      for (std::size_t i = 0; i < rest; ++i) out[base + i] = values[i];
    }
    return count;
  }

  // Map the strays once more, packed into full lanes; return the number that are still strays.
  std::size_t again(std::uint64_t* out, std::uint16_t* strays, std::size_t count) const {
    std::size_t kept = 0;
    for (std::size_t base = 0; base < count; base += V::width) {
      const std::size_t rest = count - base < V::width ? count - base : V::width;
      std::uint64_t values[V::width] = {};
      for (std::size_t i = 0; i < rest; ++i) values[i] = out[strays[base + i]];
      const std::uint64_t found = pass<1>(values, values);
      for (std::size_t i = 0; i < rest; ++i) {
        const std::uint16_t slot = strays[base + i];
        out[slot] = values[i];
        if ((found >> i) & 1) strays[kept++] = slot;
      }
    }
    return kept;
  }

  void all(const std::uint64_t* in, std::uint64_t* out, std::size_t size) const {
    std::uint16_t strays[chunk];
    for (std::size_t base = 0; base < size; base += chunk) {
      const std::size_t part = size - base < chunk ? size - base : chunk;
      std::size_t count = once(in + base, out + base, part, strays);
      while (count != 0) count = again(out + base, strays, count);
    }
  }
};

template <class V, bool inverted>
void permute(const Cipher& cipher, const std::uint64_t* in, std::uint64_t* out,
             std::size_t size) {
  const std::uint64_t domain = std::uint64_t{cipher.left_count} << cipher.right_bits;
  if (domain <= std::uint64_t{1} << 32)
    Feistel<V, inverted, true>(cipher).all(in, out, size);
  else
    Feistel<V, inverted, false>(cipher).all(in, out, size);
}

}  // namespace penstock
