// Theory of operation. Each folder is a node that owns its entries' names. Two kinds of work wait
// in one queue: read a folder's names, and stat a slice of them (slices, so that a flat folder of
// a million files is also shared among the threads). The thread that finishes a folder's last slice
// sorts its entries. When no work is left, one walk over the sorted tree writes the listing.
//
// Sorting folder by folder, with "/" after the names of folders, gives the order of the whole
// paths: a path below folder "a" compares with its sibling "a-b" as "a/" does.
#include "index/scan.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>

#include "ground/leftovers.hpp"

namespace penstock {
namespace {

constexpr std::size_t slice_entries = 512;
constexpr int links_max = 8;  // folder links on one path: deeper is a maze, not a data set
constexpr auto tick_period = std::chrono::milliseconds(100);

struct Descriptor {
  int fd;
  explicit Descriptor(int value) : fd(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

struct Node;

struct Entry {
  std::uint32_t start;   // of the name within the node's names
  std::uint32_t length;  // the byte after the name is '\0', or '/' for a folder
  unsigned char type;    // DT_*; DT_WHT marks an entry that is left out
  std::int64_t size;
  std::int64_t mtime_ns;
  Node* folder;
};

struct Node {
  std::string path;  // relative to the root, ends with '/' unless empty
  Node* parent;
  int links;  // folder links followed on the way here
  dev_t device = 0;
  ino_t inode = 0;
  std::int64_t mtime_ns = 0;
  bool looped = false;  // reached by a link from within itself
  std::string names;
  std::vector<Entry> entries;
  std::atomic<std::size_t> slices{0};  // not yet stat'ed

  Node(std::string where, Node* above, int followed)
      : path(std::move(where)), parent(above), links(followed) {}
  const char* name(const Entry& e) const { return names.data() + e.start; }
  std::string_view sort_key(const Entry& e) const {
    return {name(e), e.length + (e.type == DT_DIR ? 1u : 0u)};
  }
};

struct Work {
  Node* node;
  std::shared_ptr<Descriptor> folder;  // null: read the folder; else: stat entries [first, last)
  std::size_t first;
  std::size_t last;
};

template <typename Time>  // timespec, or what statx has in its place
std::int64_t nanoseconds(const Time& t) {
  return std::int64_t{t.tv_sec} * 1'000'000'000 + static_cast<std::int64_t>(t.tv_nsec);
}

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool ends_with(std::string_view name, std::string_view extension) {
  if (name.size() < extension.size()) return false;
  const auto tail = name.substr(name.size() - extension.size());
  return std::equal(tail.begin(), tail.end(), extension.begin(),
                    [](char a, char b) { return to_lower(a) == b; });
}

class Scanner {
 public:
  Scanner(const std::string& root, const ScanOptions& options) : root_(root), options_(options) {}

  Listing run(const ScanTick& tick) {
    push({add("", nullptr, 0), nullptr, 0, 0});
    std::vector<std::thread> threads;
    try {
      for (unsigned i = 0; i < std::max(1u, options_.threads); ++i)
        threads.emplace_back([this] { work(); });
    } catch (...) {  // fewer threads than requested will do, but not none
      if (threads.empty()) throw;
    }
    try {
      wait(tick);
    } catch (...) {
      stop();
      for (auto& thread : threads) thread.join();
      throw;
    }
    for (auto& thread : threads) thread.join();
    return make_listing();
  }

 private:
  void work() noexcept {
    Work item;
    while (pop(item)) {
      try {
        if (item.folder)
          stat_slice(item);
        else
          read_folder(*item.node);
      } catch (const std::bad_alloc&) {
        out_of_memory_ = true;
        stop();
      }
      item.folder.reset();
      finish_work();
    }
  }

  void wait(const ScanTick& tick) {
    const auto finished = [this] { return outstanding_ == 0 || stopped_; };
    for (;;) {
      if (tick && !tick(files_.load(std::memory_order_relaxed))) {
        cancelled_ = true;
        return stop();
      }
      std::unique_lock lock(mutex_);
      if (finished_.wait_for(lock, tick_period, finished)) return;
    }
  }

  void push(Work item) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    ++outstanding_;
    ready_.notify_one();
  }

  // Last in, first out: slices are finished, and their descriptors closed, before more folders.
  bool pop(Work& item) {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return stopped_ || outstanding_ == 0 || !queue_.empty(); });
    if (stopped_ || queue_.empty()) return false;
    item = std::move(queue_.back());
    queue_.pop_back();
    return true;
  }

  void finish_work() {
    std::lock_guard lock(mutex_);
    if (--outstanding_ == 0) {
      ready_.notify_all();
      finished_.notify_all();
    }
  }

  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    ready_.notify_all();
    finished_.notify_all();
  }

  Node* add(std::string path, Node* parent, int links) {
    auto node = std::make_unique<Node>(std::move(path), parent, links);
    std::lock_guard lock(mutex_);
    nodes_.push_back(std::move(node));
    return nodes_.back().get();
  }

  void fail(std::string path, int error) {
    std::lock_guard lock(mutex_);
    failures_.push_back({std::move(path), error});
  }

  std::string full_path(const Node& node) const {
    return node.path.empty() ? root_ : root_ + "/" + node.path;
  }

  static bool contains_itself(const Node& node) {
    for (const Node* above = node.parent; above != nullptr; above = above->parent)
      if (above->device == node.device && above->inode == node.inode) return true;
    return false;
  }

  void read_folder(Node& node) {
    const int fd = ::open(full_path(node).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(node.path, errno);
    auto folder = std::make_shared<Descriptor>(fd);
    struct ::stat status;
    if (::fstat(fd, &status) != 0) return fail(node.path, errno);
    node.device = status.st_dev;
    node.inode = status.st_ino;
    node.mtime_ns = nanoseconds(status.st_mtim);
    node.looped = contains_itself(node);
    if (node.looped || !read_names(node, fd)) return;
    slice(node, folder);
  }

  bool read_names(Node& node, int fd) {
    const int again = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);  // closedir closes what it was given
    DIR* stream = again < 0 ? nullptr : ::fdopendir(again);
    if (stream == nullptr) {
      const int error = errno;
      if (again >= 0) ::close(again);
      fail(node.path, error);
      return false;
    }
    const std::unique_ptr<DIR, int (*)(DIR*)> owner(stream, ::closedir);
    for (;;) {
      errno = 0;
      const dirent* found = ::readdir(stream);
      if (found == nullptr) break;
      const std::string_view name(found->d_name);
      if (!is_wanted(name, found->d_type)) continue;
      node.entries.push_back({static_cast<std::uint32_t>(node.names.size()),
                              static_cast<std::uint32_t>(name.size()), found->d_type, 0, 0, nullptr});
      node.names.append(name).push_back('\0');
      if (node.names.size() > UINT32_MAX - 4096) {
        fail(node.path, EOVERFLOW);
        return false;
      }
    }
    if (errno != 0) {
      fail(node.path, errno);
      return false;
    }
    return true;
  }

  bool is_wanted(std::string_view name, unsigned char type) const {
    if (is_left_over(name) || ends_with(name, ".penstock")) return false;
    if (type == DT_REG) return has_extension(name);
    return type == DT_DIR || type == DT_LNK || type == DT_UNKNOWN;
  }

  bool has_extension(std::string_view name) const {
    return options_.extensions.empty() ||
           std::any_of(options_.extensions.begin(), options_.extensions.end(),
                       [&](const std::string& e) { return ends_with(name, e); });
  }

  void slice(Node& node, const std::shared_ptr<Descriptor>& folder) {
    const std::size_t count = (node.entries.size() + slice_entries - 1) / slice_entries;
    node.slices = count;
    for (std::size_t i = 1; i < count; ++i)
      push({&node, folder, i * slice_entries,
            std::min(node.entries.size(), (i + 1) * slice_entries)});
    if (count > 0)
      stat_slice({&node, folder, 0, std::min(node.entries.size(), slice_entries)});
  }

  void stat_slice(const Work& item) {
    Node& node = *item.node;
    std::uint64_t files = 0;
    for (std::size_t i = item.first; i < item.last; ++i) {
      stat_entry(node, node.entries[i], item.folder->fd);
      files += node.entries[i].type == DT_REG;
    }
    files_.fetch_add(files, std::memory_order_relaxed);
    if (node.slices.fetch_sub(1, std::memory_order_acq_rel) == 1)
      std::sort(node.entries.begin(), node.entries.end(), [&](const Entry& a, const Entry& b) {
        return node.sort_key(a) < node.sort_key(b);
      });
  }

  void stat_entry(Node& node, Entry& entry, int folder) {
    const bool linked = entry.type == DT_LNK;
    if (entry.type != DT_DIR) {
      struct statx status;
      if (::statx(folder, node.name(entry), 0, STATX_TYPE | STATX_SIZE | STATX_MTIME, &status) != 0) {
        fail(node.path + node.name(entry), errno);
        entry.type = DT_WHT;
        return;
      }
      if (S_ISREG(status.stx_mode)) {
        const bool keep = entry.type == DT_REG || has_extension({node.name(entry), entry.length});
        entry.type = keep ? DT_REG : DT_WHT;
        entry.size = static_cast<std::int64_t>(status.stx_size);
        entry.mtime_ns = nanoseconds(status.stx_mtime);
        return;
      }
      entry.type = S_ISDIR(status.stx_mode) ? DT_DIR : DT_WHT;
    }
    if (entry.type == DT_DIR) enter(node, entry, linked);
  }

  void enter(Node& node, Entry& entry, bool linked) {
    std::string path = node.path + node.name(entry);
    if (node.links + linked > links_max) {
      entry.type = DT_WHT;
      return fail(std::move(path), ELOOP);
    }
    node.names[entry.start + entry.length] = '/';
    entry.folder = add(path + "/", &node, node.links + linked);
    push({entry.folder, nullptr, 0, 0});
  }

  Listing make_listing() {
    Listing out;
    out.cancelled = cancelled_;
    if (out_of_memory_) throw std::bad_alloc();
    std::sort(failures_.begin(), failures_.end(),
              [](const ScanFailure& a, const ScanFailure& b) { return a.path < b.path; });
    out.failures = std::move(failures_);
    if (cancelled_) return out;
    reserve(out);
    write(out);
    return out;
  }

  void reserve(Listing& out) const {
    std::size_t bytes = 0, count = 0;
    for (const auto& node : nodes_) {
      bytes += node->names.size() + node->entries.size() * node->path.size();
      count += node->entries.size();
    }
    out.files.text.reserve(bytes);
    out.files.ends.reserve(count);
    out.size.reserve(count);
    out.mtime_ns.reserve(count);
    out.folder.reserve(count);
  }

  // A stack of its own: a hostile tree is deeper than the thread's.
  void write(Listing& out) const {
    struct Place {
      const Node* node;
      std::size_t next;
      std::int32_t number;
    };
    std::vector<Place> places;
    const auto enter = [&](const Node& node) {
      const std::string_view path = node.path;
      out.folders.text += path.substr(0, path.empty() ? 0 : path.size() - 1);
      places.push_back({&node, 0, static_cast<std::int32_t>(out.folders.ends.size())});
      out.folders.ends.push_back(static_cast<std::int64_t>(out.folders.text.size()));
      out.folder_mtime_ns.push_back(node.mtime_ns);
    };
    enter(*nodes_.front());
    while (!places.empty()) {
      Place& place = places.back();
      const Node& node = *place.node;
      if (place.next == node.entries.size()) {
        places.pop_back();
        continue;
      }
      const Entry& entry = node.entries[place.next++];
      if (entry.type == DT_REG) {
        out.files.text.append(node.path).append(node.name(entry), entry.length);
        out.files.ends.push_back(static_cast<std::int64_t>(out.files.text.size()));
        out.size.push_back(entry.size);
        out.mtime_ns.push_back(entry.mtime_ns);
        out.folder.push_back(place.number);
      } else if (entry.type == DT_DIR && !entry.folder->looped) {
        enter(*entry.folder);
      }
    }
  }

  const std::string root_;
  const ScanOptions& options_;
  std::mutex mutex_;  // guards the queue, the nodes' list and the failures
  std::condition_variable ready_;
  std::condition_variable finished_;
  std::deque<Work> queue_;
  std::size_t outstanding_ = 0;  // work queued or being done
  bool stopped_ = false;
  bool cancelled_ = false;
  std::atomic<bool> out_of_memory_{false};
  std::atomic<std::uint64_t> files_{0};
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<ScanFailure> failures_;
};

void stat_range(const std::string& root, std::span<const char> text,
                std::span<const std::int64_t> ends, std::size_t first, std::size_t last,
                Stats& out) {
  const Descriptor folder(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int error = folder.fd < 0 ? errno : 0;
  std::string name;
  for (std::size_t i = first; i < last; ++i) {
    const auto start = static_cast<std::size_t>(i == 0 ? 0 : ends[i - 1]);
    name.assign(text.data() + start, static_cast<std::size_t>(ends[i]) - start);
    struct statx status;
    if (error != 0 || ::statx(folder.fd, name.c_str(), AT_EMPTY_PATH,
                              STATX_TYPE | STATX_SIZE | STATX_MTIME, &status) != 0) {
      out.error[i] = error != 0 ? error : errno;
      continue;
    }
    out.size[i] = static_cast<std::int64_t>(status.stx_size);
    out.mtime_ns[i] = nanoseconds(status.stx_mtime);
    if (!S_ISREG(status.stx_mode)) out.error[i] = S_ISDIR(status.stx_mode) ? EISDIR : EINVAL;
  }
}

}  // namespace

Listing scan_folder(const std::string& root, const ScanOptions& options, const ScanTick& tick) {
  return Scanner(root, options).run(tick);
}

Stats stat_files(const std::string& root, std::span<const char> text,
           std::span<const std::int64_t> ends, unsigned threads) {
  const std::size_t count = ends.size();
  Stats out{std::vector<std::int64_t>(count), std::vector<std::int64_t>(count),
            std::vector<std::int32_t>(count)};
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t first; (first = next.fetch_add(slice_entries)) < count;)
      stat_range(root, text, ends, first, std::min(count, first + slice_entries), out);
  };
  std::vector<std::jthread> helpers;
  try {
    for (std::size_t i = 1; i < threads && i * slice_entries < count; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // the threads that did start, and this one, do the work
  }
  work();
  return out;
}

}  // namespace penstock
