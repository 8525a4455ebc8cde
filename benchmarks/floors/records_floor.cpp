// Floor for fixed-size records in one file: memcpy from a map whose pages are already there, or
// pread, by one thread or several.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batches.hpp"

int main(int argc, char** argv) {
  return floors::guarded([&] {
    const floors::Arguments arguments(argc, argv);
    const std::size_t record_bytes = arguments.number("record-bytes");
    const bool mapped = arguments.text("mode") == "mmap";
    const int file = ::open(arguments.text("path").c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || ::fstat(file, &status) != 0) floors::fail(arguments.text("path"));
    const auto bytes = static_cast<std::size_t>(status.st_size);

    const std::uint8_t* map = nullptr;
    if (mapped) {
      void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
      if (address == MAP_FAILED) floors::fail("mmap");
      map = static_cast<const std::uint8_t*>(address);
    }
    const auto copy = [&](std::uint32_t sample, std::uint8_t* row) {
      std::memcpy(row, map + sample * record_bytes, record_bytes);
    };
    const auto read = [&](std::uint32_t sample, std::uint8_t* row) {
      const auto offset = static_cast<off_t>(sample * record_bytes);
      if (::pread(file, row, record_bytes, offset) != static_cast<ssize_t>(record_bytes)) {
        // A thread has nobody to throw to, and a floor that read less has no result.
        std::perror("pread");
        std::abort();
      }
    };

    floors::Batches batches(bytes / record_bytes, record_bytes, arguments.number("batch"),
                            arguments.number("threads"), arguments.number("seed"));
    floors::serve([&](bool every_byte) {
      return mapped ? batches.run(every_byte, copy) : batches.run(every_byte, read);
    });
  });
}
