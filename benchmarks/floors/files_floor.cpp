// Floor for one sample a file: open, read, close, by one thread or several. All files have one size.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "batches.hpp"

namespace {

std::vector<std::string> list(DIR* folder) {
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder))
    if (std::string_view(entry->d_name).ends_with(".bin")) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  return floors::guarded([&] {
    const floors::Arguments arguments(argc, argv);
    DIR* stream = ::opendir(arguments.text("path").c_str());
    if (stream == nullptr) floors::fail(arguments.text("path"));
    const int folder = ::dirfd(stream);
    const std::vector<std::string> names = list(stream);
    struct stat status {};
    if (names.empty() || ::fstatat(folder, names.front().c_str(), &status, 0) != 0)
      floors::fail("no files");
    const auto bytes = static_cast<std::size_t>(status.st_size);

    floors::Batches batches(names.size(), bytes, arguments.number("batch"),
                            arguments.number("threads"), arguments.number("seed"));
    const auto read = [&](std::uint32_t sample, std::uint8_t* row) {
      const int file = ::openat(folder, names[sample].c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0 || ::read(file, row, bytes) != static_cast<ssize_t>(bytes)) {
        // A thread has nobody to throw to, and a floor that read less has no result.
        std::perror(names[sample].c_str());
        std::abort();
      }
      ::close(file);
    };
    floors::serve([&](bool every_byte) { return batches.run(every_byte, read); });
  });
}
