// Floor for random reads from storage far away: so many threads, each with one pread outstanding.
// Speaks the lines of benchmarks/fleet.py. --extents is a file of int64 pairs: offset, length.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "protocol.hpp"

namespace {

struct Extent {
  std::int64_t offset;
  std::int64_t length;
};

std::vector<Extent> extents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Extent> extents(static_cast<std::size_t>(file.tellg()) / sizeof(Extent));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(extents.data()),
            static_cast<std::streamsize>(extents.size() * sizeof(Extent)));
  return extents;
}

double now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::uint64_t head(const std::uint8_t* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

}  // namespace

int main(int argc, char** argv) {
  return floors::guarded([&] {
    const floors::Arguments arguments(argc, argv);
    const std::size_t depth = arguments.number("depth");
    const auto extents = extents_of(arguments.text("extents"));
    std::int64_t longest = 0;
    for (const Extent& extent : extents) longest = std::max(longest, extent.length);
    constexpr std::size_t recycled = 64;  // rows of each thread: a batch has to go somewhere
    std::vector<floors::Pages> rows;
    while (rows.size() < depth) rows.emplace_back(recycled * static_cast<std::size_t>(longest));

    int file = -1;
    std::puts("{}");
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
      if (line.starts_with("open ")) {
        const int flags = arguments.number("direct") != 0 ? O_DIRECT : 0;
        file = ::open(line.substr(5).c_str(), O_RDONLY | O_CLOEXEC | flags);
        if (file < 0) floors::fail(line);
        std::puts("{}");
      } else if (line == "close") {
        ::close(file);
        std::puts("{}");
      } else {
        std::atomic<std::size_t> next{0};
        std::atomic<std::uint64_t> sum{0};
        std::atomic<int> failure{0};
        const double begin = now();
        std::vector<std::thread> threads;
        for (std::size_t thread = 0; thread < depth; ++thread)
          threads.emplace_back([&, thread] {
            std::uint64_t part = 0;
            for (std::size_t turn = 0;; ++turn) {
              const std::size_t at = next.fetch_add(1, std::memory_order_relaxed);
              if (at >= extents.size()) break;
              std::uint8_t* row = rows[thread].data() +
                                  turn % recycled * static_cast<std::size_t>(longest);
              const auto length = static_cast<std::size_t>(extents[at].length);
              if (::pread(file, row, length, extents[at].offset) != extents[at].length)
                failure = errno == 0 ? EIO : errno;
              part += head(row);
            }
            sum += part;
          });
        for (std::thread& thread : threads) thread.join();
        const double end = now();
        errno = failure;
        if (failure != 0) floors::fail("pread");
        std::printf("{\"samples\": %zu, \"sum\": %llu, \"begin\": %.9f, \"end\": %.9f}\n",
                    extents.size(), static_cast<unsigned long long>(sum), begin, end);
      }
      std::fflush(stdout);
    }
  });
}
