// Blocks that are read and written many at a time, against a copy in memory.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine/block_moves.hpp"
#include "tests/support/check.hpp"

using namespace penstock;

namespace {

constexpr std::size_t page = 4096;
using Bytes = std::vector<std::byte>;

// 200 blocks, more than a ring takes, are written in reverse and read back; what lies behind the
// end of the file does not come, and has no error.
void round_trip(int file) {
  constexpr std::size_t count = 200;
  Bytes written(count * page);
  for (std::size_t i = 0; i < written.size(); ++i) written[i] = static_cast<std::byte>(i / 7 + i / page);
  std::vector<BlockMove> blocks(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (count - 1 - i) * page;
    blocks[i].offset = static_cast<std::int64_t>(at);
    blocks[i].memory = std::span(written).subspan(at, page);
  }
  move_blocks(file, true, blocks);
  for (const BlockMove& block : blocks) CHECK(block.error == 0 && block.done == page);

  Bytes found((count + 2) * page);
  std::vector<BlockMove> reads(count + 1);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    reads[i].offset = static_cast<std::int64_t>(i * page);
    reads[i].memory = std::span(found).subspan(i * page, i + 1 == count ? 2 * page : page);
  }
  move_blocks(file, false, reads);
  for (std::size_t i = 0; i < count; ++i) CHECK(reads[i].error == 0 && reads[i].done == page);
  CHECK(reads[count].error == 0 && reads[count].done == 0);
  CHECK(std::memcmp(found.data(), written.data(), written.size()) == 0);
}

void errors() {
  Bytes memory(2 * page);
  std::vector<BlockMove> blocks(2);
  for (BlockMove& block : blocks) block.memory = std::span(memory).first(page);
  move_blocks(-1, false, blocks);
  for (const BlockMove& block : blocks) CHECK(block.error == EBADF && block.done == 0);
  move_blocks(-1, true, std::span(blocks).first(0));
}

}  // namespace

int main() {
  std::string path = "/tmp/penstock-blocks-XXXXXX";
  const int file = ::mkstemp(path.data());
  CHECK(file >= 0);
  ::unlink(path.c_str());
  round_trip(file);
  errors();
  const pid_t child = ::fork();  // it must not use the ring of its parent
  if (child == 0) {
    round_trip(file);
    ::_exit(0);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child && status == 0);
  round_trip(file);
  ::close(file);
  return 0;
}
