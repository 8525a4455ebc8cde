#include "index/walk_tar.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ground/leftovers.hpp"
#include "ground/limits.hpp"
#include "index/column_growth.hpp"
#include "index/tar_header.hpp"

namespace penstock::tar {
namespace {

constexpr std::uint64_t round_to_block(std::uint64_t size) {
  return (size + block_bytes - 1) / block_bytes * block_bytes;
}

// Quote a name for a message, which stays one readable line whatever the name holds.
std::string quote(std::string_view name) {
  std::string out = "'";
  for (const char c : name.substr(0, 200))
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (name.size() > 200 ? "...'" : "'");
}

// The part of a path that forbids it as a key, or null. Keys are never used as paths here, but they
// are elsewhere.
const char* find_unsafe_part(std::string_view path) {
  if (path.find('\0') != path.npos) return "a zero byte";
  if (path.starts_with('/')) return "an absolute path";
  if (path.find("..") == path.npos) return nullptr;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    if (path.substr(at, slash - at) == "..") return "a path with '..'";
    at = slash + 1;
  }
  return nullptr;
}

struct Split {
  std::string_view key, extension;
};

// True if a folder of the path, or the file, is hidden or was left by a system.
bool is_left_over_below(std::string_view path) {
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t slash = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, slash - at);
    if (part != "." && is_left_over(part)) return true;
    at = slash + 1;
  }
  return false;
}

// Split a path as WebDataset does; nothing for files that are no data, as in a folder, and for those
// that WebDataset drops.
std::optional<Split> split_path(std::string_view path) {
  const std::string_view top = path.substr(0, path.find('/'));
  if (top.size() >= 4 && top.starts_with("__") && top.ends_with("__")) return std::nullopt;
  const std::size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  const std::size_t dot = path.find('.', name);
  if (dot == path.npos || is_left_over_below(path)) return std::nullopt;
  return Split{path.substr(0, dot), path.substr(dot + 1)};
}

// Numbers of names, in order of first appearance.
class Interned {
 public:
  explicit Interned(Blob& blob) : blob_(blob) {}

  // Names mostly recur in that order, so the one after the last is tried first.
  std::int32_t intern(std::string_view name) {
    if (blob_.ends.empty() || blob_[next_] != name) next_ = look_up(name);
    const std::size_t found = next_++;
    if (next_ == blob_.ends.size()) next_ = 0;
    return static_cast<std::int32_t>(found);
  }

 private:
  std::size_t look_up(std::string_view name) {
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const std::size_t number = blob_.ends.size();
    blob_.add(name);
    numbers_.emplace(name, number);
    return number;
  }

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  Blob& blob_;
  std::unordered_map<std::string, std::size_t, Hash, std::equal_to<>> numbers_;
  std::size_t next_ = 0;
};

// The set of keys. While keys ascend, as those of most archives do, the last one is enough; from
// the first that does not ascend on, an open hash table of sample numbers, whose names lie in the
// blob.
class Keys {
 public:
  explicit Keys(const Blob& blob) : blob_(blob) {}

  // The number of the earlier sample with the key of the last sample, or -1.
  std::int64_t find_earlier() {
    const auto count = blob_.ends.size();
    if (slots_.empty()) {
      if (count < 2 || key(count - 1) > key(count - 2)) return -1;
      slots_.resize(1024, 0);
      while (2 * count > slots_.size()) slots_.resize(4 * slots_.size(), 0);
      for (std::size_t sample = 0; sample + 1 < count; ++sample) insert(sample);
    } else if (2 * count > slots_.size()) {
      std::vector<std::uint64_t>(4 * slots_.size(), 0).swap(slots_);
      for (std::size_t sample = 0; sample + 1 < count; ++sample) insert(sample);
    }
    return insert(count - 1);
  }

 private:
  // A slot is 0, or the number of a sample + 1 below some bits of its hash, which tell most others
  // apart without a look at their names.
  static constexpr unsigned number_bits = 40;
  static constexpr std::uint64_t number_mask = (std::uint64_t{1} << number_bits) - 1;

  std::int64_t insert(std::size_t sample) {
    const std::string_view name = key(sample);
    const std::uint64_t hash = std::hash<std::string_view>{}(name);
    const std::uint64_t own = (hash & ~number_mask) | (sample + 1);
    for (std::uint64_t slot = hash;; ++slot) {
      std::uint64_t& held = slots_[slot & (slots_.size() - 1)];
      if (held == 0) {
        held = own;
        return -1;
      }
      const auto other = static_cast<std::size_t>((held & number_mask) - 1);
      if (((held ^ own) & ~number_mask) == 0 && key(other) == name)
        return static_cast<std::int64_t>(other);
    }
  }

  std::string_view key(std::size_t sample) const { return blob_[sample]; }

  const Blob& blob_;
  std::vector<std::uint64_t> slots_;
};

class Walker {
 public:
  Walker(Source& source, const ReadPolicy& policy, const Options& options)
      : reader_(source, policy), options_(options), extensions_(found_.extensions), keys_(found_.keys),
        growth_(source.size) {}

  Walk run() {
    while (at_ < reader_.size() && walk_member()) {
    }
    if (!found_.parse_error && reader_.error() == 0) finish();
    found_.read_error = reader_.error();
    found_.ended = ended_;
    found_.inherited = all_.path || all_.size || all_.sparse;
    return std::move(found_);
  }

 private:
  bool refuse(std::uint64_t at, std::string message) {
    found_.parse_error = ParseError{at, std::move(message)};
    return false;
  }

  bool refuse_truncated(std::uint64_t at) {
    found_.parse_error = reader_.describe_truncation(at);
    return false;
  }

  void finish() {
    if (has_long_name_ || has_pax_)
      refuse(at_, "the archive ends after the long name of a member that is missing: it is truncated");
    else if (!ended_ && options_.end_required)
      refuse(at_, "the archive has no end mark (two blocks of zeros): it may be truncated; if it is "
                  "whole, open it with end='optional'");
  }

  // Walk one header and its data. False if the walk is over.
  bool walk_member() {
    const std::uint64_t at = at_, left = reader_.size() - at;
    if (left < block_bytes) return read_cut_block(at, left);
    const std::byte* block = reader_.view(at, block_bytes);
    if (block == nullptr) return refuse_truncated(at);
    if (block[0] == std::byte{0} && is_zero(block)) return skip_zeros(at);
    if (ended_ && !options_.ignore_zeros)
      return refuse(at, "something follows the end mark of the archive: if archives were "
                        "concatenated, open them with ignore_zeros=True");
    if (!checksum_matches(block))
      return refuse(at, at == 0 ? "the checksum of the first header is wrong: this is no tar archive"
                                : "the checksum of a header is wrong: the archive is damaged");
    ended_ = false;
    Header header;
    if (const char* wrong = parse_header(block, header)) return refuse(at, describe_damage("a member", wrong));
    return walk_type(at, header);
  }

  static std::string describe_damage(std::string_view who, std::string_view what) {
    return std::string(who) + ": " + std::string(what) + ": the archive is damaged";
  }

  bool read_cut_block(std::uint64_t at, std::uint64_t left) {
    // After the end, some writers fill up to other sizes.
    const std::byte* rest = reader_.view(at, static_cast<std::size_t>(left));
    if (rest == nullptr) return refuse_truncated(at);
    const bool zero = std::all_of(rest, rest + left, [](std::byte b) { return b == std::byte{0}; });
    if (!(ended_ && zero))
      return refuse(at, "the file ends inside a header (" + std::to_string(left) +
                            " of 512 bytes are there): it is truncated");
    at_ += left;
    return true;
  }

  bool skip_zeros(std::uint64_t at) {
    ended_ = true;
    at_ = at + block_bytes;
    return true;
  }

  bool walk_type(std::uint64_t at, const Header& header) {
    const std::string_view name = header.name;
    switch (header.type) {
      case 'L': case 'K': case 'x': case 'X': case 'g':
        return read_metadata(at, header);
      case '0': case '\0': case '7':
        return add_regular(at, header);
      case '3': case '4': case '5': case '6': case 'V':
        // Folders, devices, pipes and volume labels have no data, whatever size they name.
        forget();
        at_ = at + block_bytes;
        return true;
      case '1': case '2':
        return refuse(at, quote(name) + " is a link, which holds no data: write the archive with "
                          "the files themselves (tar --dereference --hard-dereference)");
      case 'S':
        return refuse(at, quote(name) + " is sparse: its bytes are not stored as they are: write "
                          "the archive without --sparse");
      case 'M':
        return refuse(at, quote(name) + " continues from another volume: write one archive");
      default:
        return refuse(at, quote(name) + " is of the unknown type " +
                              quote(std::string_view(&header.type, 1)) + ": write the archive anew");
    }
  }

  void forget() {
    has_long_name_ = has_pax_ = false;
    next_ = {};
  }

  // A long name, or pax records for the next member or all.
  bool read_metadata(std::uint64_t at, const Header& header) {
    const std::uint64_t size = header.size;
    const char type = header.type;
    if (size > reader_.size() - at - block_bytes)
      return refuse(at, "a long name or pax header of " + std::to_string(size) +
                            " bytes runs over the end of the file: it is truncated or damaged");
    if (size > limits::header_bytes_max)
      return refuse(at, "a long name or pax header of " + std::to_string(size) +
                            " bytes is longer than any: the archive is damaged");
    const std::byte* data = reader_.view(at + block_bytes, static_cast<std::size_t>(size));
    if (data == nullptr) return refuse_truncated(at);
    const std::string_view text(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
    const char* wrong = nullptr;
    if (type == 'L') {
      has_long_name_ = true;
      long_name_ = text.substr(0, text.find('\0'));
    } else if (type == 'x' || type == 'X') {
      has_pax_ = true;
      next_ = {};
      wrong = parse_pax(text, next_);
    } else if (type == 'g') {
      wrong = parse_pax(text, all_);
    }
    if (wrong != nullptr) return refuse(at, describe_damage("a pax header", wrong));
    at_ = at + block_bytes + round_to_block(size);
    if (at_ > reader_.size()) at_ = reader_.size();
    return true;
  }

  bool add_regular(std::uint64_t at, const Header& header) {
    if (next_.sparse || all_.sparse)
      return refuse(at, quote(header.name) + " is sparse: its bytes are not stored as they are: "
                        "write the archive without --sparse");
    // The most particular name counts: pax of this member, pax of all, GNU, the header.
    std::string_view path = header.name;
    if (next_.path && !next_.path->empty()) {
      path = path_ = *next_.path;
    } else if (!next_.path && all_.path && !all_.path->empty()) {
      path = *all_.path;
    } else if (has_long_name_) {
      path = long_name_;
    } else if (!header.prefix.empty()) {
      path_ = header.prefix;
      path_ += '/';
      path = path_ += header.name;
    }
    const std::uint64_t size = next_.size.value_or(all_.size.value_or(header.size));
    const std::uint64_t left = reader_.size() - at - block_bytes;
    forget();
    if (size > left)
      return refuse(at, quote(path) + " has " + std::to_string(size) + " bytes, and the file ends " +
                            std::to_string(left) + " bytes on: it is truncated or damaged");
    at_ = at + block_bytes + std::min(round_to_block(size), left);
    // V7 has no type for folders.
    if (header.type == '\0' && path.ends_with('/')) return true;
    if (const char* wrong = find_unsafe_part(path))
      return refuse(at, quote(path) + " is " + wrong + ", which no key may be: write the archive "
                        "with relative names");
    return add(at, size, path);
  }

  bool add(std::uint64_t at, std::uint64_t size, std::string_view path) {
    const auto parts = split_path(path);
    if (!parts) {
      ++found_.dropped;
      return true;
    }
    lower_ = parts->extension;
    for (char& c : lower_)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const std::int32_t extension = extensions_.intern(lower_);
    if (found_.at.empty() || parts->key != found_.keys[found_.at.size() - 1]) {
      found_.keys.add(parts->key);
      found_.at.push_back(static_cast<std::int64_t>(at));
      if (const std::int64_t earlier = options_.duplicates ? -1 : keys_.find_earlier(); earlier >= 0)
        return refuse(at, "the key " + quote(parts->key) + " comes again, after the sample at byte " +
                              std::to_string(found_.at[static_cast<std::size_t>(earlier)]) +
                              ": its files must follow each other; if these are two samples, open "
                              "with duplicates='all'");
    }
    const auto sample = static_cast<std::int64_t>(found_.at.size()) - 1;
    if (static_cast<std::size_t>(extension) >= last_sample_.size()) last_sample_.push_back(-1);
    if (std::exchange(last_sample_[static_cast<std::size_t>(extension)], sample) == sample)
      return refuse(at, "the sample " + quote(parts->key) + " has " + quote(lower_) +
                            " twice: give them different names");
    growth_.reserve(at, found_.sample.size(), found_.keys.text, found_.keys.ends, found_.at,
               found_.sample, found_.extension, found_.offset, found_.length, found_.label_value,
               found_.label_is_integer, found_.labels.text, found_.labels.ends);
    found_.sample.push_back(sample);
    found_.extension.push_back(extension);
    found_.offset.push_back(static_cast<std::int64_t>(at + block_bytes));
    found_.length.push_back(static_cast<std::int64_t>(size));
    return !options_.label || lower_ != *options_.label || read_label(at, size, path);
  }

  bool read_label(std::uint64_t at, std::uint64_t size, std::string_view path) {
    if (size > label_bytes_max)
      return refuse(at, quote(path) + " has " + std::to_string(size) + " bytes, which is no label: "
                        "name another extension with label=, or give label=''");
    std::string_view text;
    if (size > 0) {
      const std::byte* data = reader_.view(at + block_bytes, static_cast<std::size_t>(size));
      if (data == nullptr) return refuse_truncated(at);
      text = {reinterpret_cast<const char*>(data), static_cast<std::size_t>(size)};
    }
    constexpr std::string_view space = " \t\r\n\v\f";
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    text = text.substr(0, text.find_last_not_of(space) + 1);
    const bool plus = text.size() > 1 && text[0] == '+' && text[1] != '-';
    const std::string_view digits = text.substr(plus ? 1 : 0);
    std::int64_t value = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool integer = !digits.empty() && code == std::errc() && end == digits.data() + digits.size();
    found_.label_value.push_back(integer ? value : 0);
    found_.label_is_integer.push_back(integer ? 1 : 0);
    found_.labels.add(text);
    return true;
  }

  BufferedReader reader_;
  Options options_;
  Walk found_;
  Interned extensions_;
  Keys keys_;
  ColumnGrowth growth_;
  std::uint64_t at_ = 0;
  std::vector<std::int64_t> last_sample_;  // that had each extension
  bool ended_ = false;            // behind an end mark
  bool has_long_name_ = false, has_pax_ = false;
  std::string long_name_, path_, lower_;
  Pax next_, all_;
};

}  // namespace

Walk walk(Source& source, const ReadPolicy& policy, const Options& options) {
  return Walker(source, policy, options).run();
}

}  // namespace penstock::tar
