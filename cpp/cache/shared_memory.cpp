#include "cache/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "ground/gather.hpp"

namespace penstock {

// Fixed once written, up to `cursor`; padded so that what changes has cache lines of its own.
struct SlabHeader {
  std::uint64_t magic;
  std::uint64_t version;
  Slab::Identity identity;
  std::uint64_t slots;
  std::uint64_t data_bytes;
  std::uint64_t alignment;
  std::uint64_t data;
  std::uint64_t pid_namespace;
  alignas(64) std::uint64_t cursor;
  alignas(64) std::uint64_t published_bytes;
  std::uint64_t ready;
  std::uint64_t taken_over;
  std::uint64_t dropped;
};

namespace {

using Atomic = std::atomic_ref<std::uint64_t>;
static_assert(Atomic::is_always_lock_free, "a lock in shared memory would outlive its holder");

constexpr std::uint64_t magic = 0x0a42414c534e4550;  // "PENSLAB\n"
constexpr std::uint64_t version = 1;
constexpr std::uint64_t page = 4096;
constexpr std::uint64_t huge_page = 2u << 20;
constexpr std::uint64_t bytes_max = std::uint64_t{1} << 48;  // sums below cannot overflow
constexpr std::string_view memfd_name = "penstock-slab";
static_assert(sizeof(SlabHeader) <= page);

// A word: two bits of state, then an offset, or the process that claims: its pid, which has 22 bits
// (PID_MAX_LIMIT), and when it began, in ticks since boot. A pid that is given to another process
// later is therefore another word, and no table of processes is needed.
constexpr std::uint64_t empty = 0, claimed = 1, ready = 2, state_mask = 3;
constexpr unsigned state_bits = 2, start_bits = 40;
constexpr std::uint64_t start_mask = (std::uint64_t{1} << start_bits) - 1;

std::uint64_t get_state(std::uint64_t word) { return word & state_mask; }

std::uint64_t claim_word(pid_t pid, std::uint64_t start) {
  return (static_cast<std::uint64_t>(pid) << start_bits | (start & start_mask)) << state_bits |
         claimed;
}

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Start time of a process, from /proc/<pid>/stat; nullopt, and errno, if that cannot be read. A
// zombie has ended: ESRCH.
std::optional<std::uint64_t> read_start_time(pid_t pid) {
  const Descriptor file(
      ::open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return std::nullopt;
  std::array<char, 1024> text;
  const ssize_t got = ::read(file.get(), text.data(), text.size() - 1);
  if (got < 0) return std::nullopt;
  text[static_cast<std::size_t>(got)] = '\0';
  // "pid (name) state ..." where the name may hold anything: the state is field 3, the start 22.
  const char* at = std::strrchr(text.data(), ')');
  errno = EPROTO;
  if (at == nullptr || at[1] != ' ') return std::nullopt;
  at += 2;
  if (*at == 'Z' || *at == 'X' || *at == 'x') {
    errno = ESRCH;
    return std::nullopt;
  }
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return std::nullopt;
    ++at;
  }
  char* end = nullptr;
  const std::uint64_t start = std::strtoull(at, &end, 10);
  if (end == at) return std::nullopt;
  return start;
}

// True only on evidence: a process about which nothing can be read counts as alive.
bool is_dead(std::uint64_t word) {
  const auto pid = static_cast<pid_t>(word >> (state_bits + start_bits));
  if (const auto start = read_start_time(pid)) return claim_word(pid, *start) != word;
  return errno == ENOENT || errno == ESRCH;
}

std::uint64_t make_own_claim() {
  const auto start = read_start_time(::getpid());
  if (!start) fail("/proc/self/stat: is /proc mounted?");
  return claim_word(::getpid(), *start);
}

std::uint64_t read_pid_namespace() {
  struct stat info {};
  if (::stat("/proc/self/ns/pid", &info) != 0) fail("/proc/self/ns/pid: is /proc mounted?");
  return info.st_ino;
}

std::uint64_t find_data_start(const Slab::Shape& shape) {
  return (page + shape.slots * sizeof(std::uint64_t) + huge_page - 1) / huge_page * huge_page;
}

std::uint64_t count_region_bytes(const Slab::Shape& shape) {
  return find_data_start(shape) + (shape.data == Slab::Data::inside ? shape.data_bytes : 0);
}

bool is_possible(const Slab::Shape& shape) {
  return shape.slots >= 1 && shape.slots < bytes_max / 8 && shape.data_bytes < bytes_max &&
         shape.alignment >= 1 && shape.alignment <= page &&
         (shape.alignment & (shape.alignment - 1)) == 0 &&
         (shape.data == Slab::Data::inside || shape.data == Slab::Data::outside);
}

std::byte* map_region(int fd, std::uint64_t bytes) {
  void* region = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (region == MAP_FAILED) fail("mmap");
  ::madvise(region, bytes, MADV_HUGEPAGE);  // if the system grants them to shared memory
  ::madvise(region, bytes, MADV_DONTDUMP);
  return static_cast<std::byte*>(region);
}

void check_same_length(std::size_t a, std::size_t b) {
  if (a != b) throw std::invalid_argument("columns differ in length");
}

// No shrinking: a map of removed pages would raise SIGBUS in all processes that have it.
constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

std::shared_ptr<Slab> Slab::create(const Shape& shape, const Identity& identity) {
  if (!is_possible(shape)) throw std::invalid_argument("a slab cannot have this shape");
  const std::uint64_t me = make_own_claim();
  Descriptor fd(::memfd_create(memfd_name.data(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) fail("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(count_region_bytes(shape))) != 0) fail("ftruncate");
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) fail("F_ADD_SEALS");
  std::byte* region = map_region(fd.get(), count_region_bytes(shape));
  std::shared_ptr<Slab> slab(new Slab(fd.release(), shape, region, me));
  SlabHeader& header = *slab->header_;
  header.version = version;
  header.identity = identity;
  header.slots = shape.slots;
  header.data_bytes = shape.data_bytes;
  header.alignment = shape.alignment;
  header.data = static_cast<std::uint64_t>(shape.data);
  header.pid_namespace = read_pid_namespace();
  Atomic(header.magic).store(magic, std::memory_order_release);
  return slab;
}

std::shared_ptr<Slab> Slab::attach(pid_t pid, int other, const Identity& identity) {
  const std::uint64_t me = make_own_claim();
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(other);
  // Checked before it is opened: opening a pipe or a device by mistake could wait or have effects.
  std::array<char, 256> target{};
  if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0) fail("readlink");
  if (!std::string_view(target.data()).starts_with("/memfd:" + std::string(memfd_name)))
    throw std::invalid_argument("it is no slab but " + std::string(target.data()));
  Descriptor fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) fail("open");
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail("fstat");
  const auto bytes = static_cast<std::uint64_t>(info.st_size);
  SlabHeader header;
  const ssize_t got = ::pread(fd.get(), &header, sizeof header, 0);
  if (got < 0) fail("pread");
  if (got != sizeof header || header.magic != magic)
    throw std::invalid_argument("it does not start as a slab does");
  if (header.version != version)
    throw std::invalid_argument("it is of version " + std::to_string(header.version) +
                                ", this penstock knows " + std::to_string(version));
  const Shape shape{header.slots, header.data_bytes, header.alignment,
                    static_cast<Data>(header.data)};
  if (!is_possible(shape) || header.data > 1 || count_region_bytes(shape) != bytes ||
      (::fcntl(fd.get(), F_GET_SEALS) & seals) != seals)
    throw std::invalid_argument("its header is damaged");
  if (header.pid_namespace != read_pid_namespace())
    throw std::invalid_argument("its processes have other pids than this one sees (containers)");
  if (header.identity != identity) throw std::invalid_argument("it holds other data");
  std::byte* region = map_region(fd.get(), bytes);
  return std::shared_ptr<Slab>(new Slab(fd.release(), shape, region, me));
}

Slab::Slab(int fd, const Shape& shape, std::byte* region, std::uint64_t me)
    : fd_(fd),
      shape_(shape),
      owner_(::getpid()),
      claimed_by_me_(me),
      region_(region),
      header_(reinterpret_cast<SlabHeader*>(region)),
      table_(reinterpret_cast<std::uint64_t*>(region + page)),
      data_(region + find_data_start(shape), shape.data == Data::inside ? shape.data_bytes : 0) {}

Slab::~Slab() {
  if (!is_inherited()) abandon_all();
  ::munmap(region_, count_region_bytes(shape_));
  ::close(fd_);
}

bool Slab::is_inherited() const { return ::getpid() != owner_; }

Slab::Counters Slab::counters() const {
  const auto read = [](std::uint64_t& counter) {
    return Atomic(counter).load(std::memory_order_relaxed);
  };
  return {read(header_->ready), std::min(read(header_->cursor), shape_.data_bytes),
          read(header_->published_bytes), read(header_->taken_over), read(header_->dropped)};
}

void Slab::check(std::span<const std::int64_t> slots) const {
  for (const std::int64_t slot : slots)
    if (static_cast<std::uint64_t>(slot) >= shape_.slots)
      throw std::out_of_range("slot " + std::to_string(slot) + " is not one of " +
                              std::to_string(shape_.slots));
}

void Slab::claim(std::span<const std::int64_t> slots, std::span<Claim> found) {
  check_same_length(slots.size(), found.size());
  check(slots);
  if (is_inherited()) throw std::logic_error("a forked child cannot claim");
  const std::lock_guard lock(mutex_);
  // Asked once a batch, because asking takes up to three system calls.
  std::uint64_t known_alive = claimed_by_me_;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Atomic slot(word(slots[i]));
    std::uint64_t seen = slot.load(std::memory_order_acquire);
    found[i] = Claim::busy;
    for (;;) {
      if (get_state(seen) == ready) {
        found[i] = Claim::ready;
        break;
      }
      if (seen != empty) {
        if (get_state(seen) != claimed || seen == known_alive || seen == claimed_by_me_) break;
        if (!is_dead(seen)) {
          known_alive = seen;
          break;
        }
      }
      // Recorded first: a claim that is not recorded would stand until this process ends.
      const bool fresh = claims_.insert(slots[i]).second;
      const std::uint64_t before = seen;
      if (slot.compare_exchange_strong(seen, claimed_by_me_, std::memory_order_acq_rel)) {
        found[i] = Claim::mine;
        if (before != empty) Atomic(header_->taken_over).fetch_add(1, std::memory_order_relaxed);
        break;
      }
      if (fresh) claims_.erase(slots[i]);
    }
  }
}

void Slab::find_offsets(std::span<const std::int64_t> slots, std::span<std::int64_t> found) const {
  check_same_length(slots.size(), found.size());
  check(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint64_t seen = Atomic(word(slots[i])).load(std::memory_order_acquire);
    const std::uint64_t at = seen >> state_bits;
    const bool good = get_state(seen) == ready && at <= shape_.data_bytes;
    found[i] = good ? static_cast<std::int64_t>(at) : -1;
  }
}

void Slab::allocate(std::span<const std::int64_t> lengths, std::span<std::int64_t> found) {
  check_same_length(lengths.size(), found.size());
  for (const std::int64_t length : lengths)
    if (length < 0)
      throw std::out_of_range("a length of " + std::to_string(length) + " bytes is below 0");
  const Atomic cursor(header_->cursor);
  std::uint64_t at = cursor.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    found[i] = -1;
    if (static_cast<std::uint64_t>(lengths[i]) > shape_.data_bytes) continue;
    const std::uint64_t bytes = round_up(static_cast<std::uint64_t>(lengths[i]));
    // Only the requested bytes must fit: padding for alignment may lie beyond the end.
    while (at <= shape_.data_bytes &&
           static_cast<std::uint64_t>(lengths[i]) <= shape_.data_bytes - at) {
      if (cursor.compare_exchange_weak(at, at + bytes, std::memory_order_relaxed)) {
        found[i] = static_cast<std::int64_t>(at);
        at += bytes;
        break;
      }
    }
  }
}

void Slab::has_claims(std::span<const std::int64_t> slots, std::span<bool> found) {
  check_same_length(slots.size(), found.size());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < slots.size(); ++i) found[i] = claims_.contains(slots[i]);
}

void Slab::publish(std::span<const std::int64_t> slots, std::span<const std::int64_t> at,
                   std::span<const std::int64_t> lengths, std::span<bool> done) {
  check_same_length(slots.size(), at.size());
  check_same_length(slots.size(), lengths.size());
  check_same_length(slots.size(), done.size());
  check(slots);
  const std::uint64_t end =
      std::min(Atomic(header_->cursor).load(std::memory_order_relaxed), shape_.data_bytes);
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (at[i] < 0 || lengths[i] < 0 || static_cast<std::uint64_t>(at[i]) > end ||
        static_cast<std::uint64_t>(lengths[i]) > end - static_cast<std::uint64_t>(at[i]) ||
        (static_cast<std::uint64_t>(at[i]) & (shape_.alignment - 1)) != 0)
      throw std::out_of_range("slot " + std::to_string(slots[i]) + " at " + std::to_string(at[i]) +
                              ", " + std::to_string(lengths[i]) +
                              " bytes, does not lie in what was allocated (" +
                              std::to_string(end) + " bytes)");
  if (is_inherited()) throw std::logic_error("a forked child cannot publish");
  std::uint64_t count = 0, bytes = 0;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    done[i] = claims_.erase(slots[i]) != 0;
    if (!done[i]) continue;
    std::uint64_t expected = claimed_by_me_;
    done[i] = Atomic(word(slots[i]))
                  .compare_exchange_strong(
                      expected, static_cast<std::uint64_t>(at[i]) << state_bits | ready,
                      std::memory_order_acq_rel);
    if (!done[i]) continue;
    ++count;
    bytes += round_up(static_cast<std::uint64_t>(lengths[i]));
  }
  Atomic(header_->ready).fetch_add(count, std::memory_order_relaxed);
  Atomic(header_->published_bytes).fetch_add(bytes, std::memory_order_relaxed);
}

void Slab::abandon(std::span<const std::int64_t> slots) {
  check(slots);
  if (is_inherited()) throw std::logic_error("a forked child cannot abandon");
  const std::lock_guard lock(mutex_);
  for (const std::int64_t slot : slots) {
    if (claims_.erase(slot) == 0) continue;
    std::uint64_t expected = claimed_by_me_;
    Atomic(word(slot)).compare_exchange_strong(expected, empty, std::memory_order_acq_rel);
  }
}

void Slab::abandon_all() {
  std::vector<std::int64_t> slots;
  {
    const std::lock_guard lock(mutex_);
    slots.assign(claims_.begin(), claims_.end());
  }
  abandon(slots);
}

void Slab::drop(std::span<const std::int64_t> slots, std::span<const std::int64_t> at) {
  check_same_length(slots.size(), at.size());
  check(slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::uint64_t expected = static_cast<std::uint64_t>(at[i]) << state_bits | ready;
    if (Atomic(word(slots[i]))
            .compare_exchange_strong(expected, empty, std::memory_order_acq_rel)) {
      Atomic(header_->ready).fetch_sub(1, std::memory_order_relaxed);
      Atomic(header_->dropped).fetch_add(1, std::memory_order_relaxed);
    }
  }
}

void Slab::gather(std::span<const std::int64_t> at, std::span<const std::int64_t> lengths,
                  std::span<const std::int64_t> targets, std::span<std::byte> out) const {
  penstock::gather(data_, at, lengths, targets, out);
}

void Slab::populate() const {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(region_, count_region_bytes(shape_), MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) fail("populate");
#endif
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(count_region_bytes(shape_))) != 0) fail("fallocate");
}

}  // namespace penstock
