// Numbers less their mean, divided by their deviation.
#include "ground/standardize.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "ground/parallel.hpp"

namespace penstock {

namespace {

constexpr std::size_t job_numbers = std::size_t{1} << 17;

inline void put(float value, float& out) { out = value; }
inline void put(float value, std::uint16_t& out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;  // which rounding might make infinite
  out = static_cast<std::uint16_t>(is_nan ? (bits >> 16 | 0x40) : rounded);
}

// Numbers [first, last) of all.
template <typename In, typename Out>
void standardize_range(const In* numbers, Out* out, std::size_t first, std::size_t last,
                       std::span<const double> mean, std::span<const double> sd,
                       std::size_t inner) {
  const std::size_t rows = mean.size();
  while (first < last) {
    const std::size_t row = first / inner % rows;
    const In* in = numbers + first;
    Out* to = out + first;
    if (inner == 1) {  // a mean for each number, as channels last have
      const std::size_t count = std::min(last - first, rows - row);
      const double* centre = mean.data() + row;
      const double* scale = sd.data() + row;
      for (std::size_t i = 0; i < count; ++i) {
        put(static_cast<float>((static_cast<double>(in[i]) - centre[i]) / scale[i]), to[i]);
      }
      first += count;
    } else {
      const std::size_t count = std::min(last - first, inner - first % inner);
      const double centre = mean[row], scale = sd[row];
      for (std::size_t i = 0; i < count; ++i) {
        put(static_cast<float>((static_cast<double>(in[i]) - centre) / scale), to[i]);
      }
      first += count;
    }
  }
}

struct NoScratch {};

template <typename In, typename Out>
void standardize_all(std::span<const std::byte> numbers, std::span<const double> mean,
                     std::span<const double> sd, std::size_t inner, std::span<std::byte> out,
                     unsigned threads) {
  const std::size_t count = numbers.size() / sizeof(In);
  const bool is_aligned = std::bit_cast<std::uintptr_t>(numbers.data()) % alignof(In) == 0 &&
                          std::bit_cast<std::uintptr_t>(out.data()) % alignof(Out) == 0;
  if (numbers.size() % sizeof(In) != 0 || out.size() != count * sizeof(Out) || !is_aligned ||
      inner == 0 || mean.empty() || mean.size() != sd.size()) {
    throw std::invalid_argument("the numbers, the means and the place for the result do not fit");
  }
  const auto* in = reinterpret_cast<const In*>(numbers.data());
  auto* to = reinterpret_cast<Out*>(out.data());
  JobErrors errors;
  in_parallel<NoScratch>((count + job_numbers - 1) / job_numbers, threads, errors,
                         [&](std::size_t job, NoScratch&) {
                           const std::size_t first = job * job_numbers;
                           const std::size_t last = std::min(first + job_numbers, count);
                           standardize_range(in, to, first, last, mean, sd, inner);
                         });
}

}  // namespace

void standardize(std::span<const std::byte> numbers, std::string_view kind,
                 std::span<const double> mean, std::span<const double> sd, std::size_t inner,
                 std::span<std::byte> out, bool halves, unsigned threads) {
  const auto run = [&]<typename In>(In) {
    const auto to = halves ? standardize_all<In, std::uint16_t> : standardize_all<In, float>;
    to(numbers, mean, sd, inner, out, threads);
  };
  if (kind == "f4") return run(float{});
  if (kind == "f8") return run(double{});
  if (kind == "b1" || kind == "u1") return run(std::uint8_t{});
  if (kind == "u2") return run(std::uint16_t{});
  if (kind == "u4") return run(std::uint32_t{});
  if (kind == "u8") return run(std::uint64_t{});
  if (kind == "i1") return run(std::int8_t{});
  if (kind == "i2") return run(std::int16_t{});
  if (kind == "i4") return run(std::int32_t{});
  if (kind == "i8") return run(std::int64_t{});
  throw std::invalid_argument("there are no such numbers");
}

}  // namespace penstock
