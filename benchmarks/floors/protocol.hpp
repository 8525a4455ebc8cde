// The conversation every contender of the benchmarks holds with the driver, one JSON object a line.
//
//   start     -> {"ready": {...}} or {"error": "..."}
//   verify    -> {"samples": n, "sum": s}                 one untimed epoch over every byte
//   epoch K   -> {"samples": n, "touch": t, "seconds": x}  K timed epochs, one byte of each sample
//
// A contender that waits for a line sleeps in read(2), so that it costs the others nothing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace floors {

constexpr std::align_val_t page{4096};

// Memory that begins where a page does, its pages there. In what malloc() takes of pages of its own
// data begin 16 bytes behind one: AMD's processors copy there from a page's start at half the rate,
// and a floor that is slow flatters.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : data_(static_cast<std::uint8_t*>(operator new(bytes, page))) {
    std::memset(data_.get(), 1, bytes);
  }
  std::uint8_t* data() { return data_.get(); }

 private:
  struct Delete {
    void operator()(std::uint8_t* bytes) const { operator delete(bytes, page); }
  };
  std::unique_ptr<std::uint8_t, Delete> data_;
};

struct Epoch {
  std::uint64_t samples = 0;
  std::uint64_t sum = 0;

  Epoch& operator+=(const Epoch& other) {
    samples += other.samples;
    sum += other.sum;
    return *this;
  }
};

// Wrapping sum of the 64-bit words of one sample: with random content any lost, repeated or
// damaged sample changes it, whatever the order.
inline std::uint64_t sum_words(const std::uint8_t* data, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at + 8 <= bytes; at += 8) {
    std::uint64_t word;
    std::memcpy(&word, data + at, 8);
    sum += word;
  }
  return sum;
}

inline std::uint64_t touch(const std::uint8_t* data, std::size_t bytes, bool every_byte) {
  return every_byte ? sum_words(data, bytes) : data[0];
}

[[noreturn]] inline void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// --name value pairs; a missing name is an error rather than a silent default.
class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int at = 1; at + 1 < argc; at += 2) values_[argv[at]] = argv[at + 1];
  }
  std::string text(const std::string& name) const {
    const auto found = values_.find("--" + name);
    if (found == values_.end()) throw std::invalid_argument("missing --" + name);
    return found->second;
  }
  std::size_t number(const std::string& name) const { return std::stoull(text(name)); }

 private:
  std::map<std::string, std::string> values_;
};

// A few different shuffles, made before the clock starts: a loader has a new order each epoch, and
// repeating one order would let the caches of a small data set learn it.
class Orders {
 public:
  Orders(std::size_t count, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto& order : orders_) {
      order.resize(count);
      std::iota(order.begin(), order.end(), 0U);
      std::shuffle(order.begin(), order.end(), random);
    }
  }
  const std::vector<std::uint32_t>& next() { return orders_[turn_++ % orders_.size()]; }

 private:
  std::vector<std::vector<std::uint32_t>> orders_ = std::vector<std::vector<std::uint32_t>>(4);
  std::size_t turn_ = 0;
};

// `run(every_byte)` delivers one epoch and returns its sum.
template <class Run>
void serve(Run&& run) {
  std::puts("{\"ready\": {}}");
  std::fflush(stdout);
  std::string line;
  while (std::getline(std::cin, line)) {
    const bool verify = line == "verify";
    const long repeats = verify ? 1 : std::stol(line.substr(line.find(' ') + 1));
    Epoch total;
    const auto start = std::chrono::steady_clock::now();
    for (long epoch = 0; epoch < repeats; ++epoch) total += run(verify);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    std::printf("{\"samples\": %llu, \"%s\": %llu, \"seconds\": %.9f}\n",
                static_cast<unsigned long long>(total.samples), verify ? "sum" : "touch",
                static_cast<unsigned long long>(total.sum), passed.count());
    std::fflush(stdout);
  }
}

// Runs `body` and turns an exception into the protocol's error line.
template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '"', '\'');
    std::printf("{\"error\": \"%s\"}\n", text.c_str());
    std::fflush(stdout);
    return 1;
  }
}

}  // namespace floors
