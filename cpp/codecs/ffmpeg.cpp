#include "codecs/ffmpeg.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace penstock::codecs {
namespace {

constexpr unsigned version = 62;  // of libavcodec in FFmpeg 8

}  // namespace

Ffmpeg::Ffmpeg(const std::string& module) {
  // A look-up by a module's handle goes on to the libraries that it needs. It is never closed.
  void* handle = dlopen(module.c_str(), RTLD_NOW);
  if (handle == nullptr) throw std::runtime_error(dlerror());
#define PENSTOCK_FIND(name, returns, takes)                                                        \
  name = reinterpret_cast<returns(*) takes>(dlsym(handle, #name));                                 \
  if (name == nullptr)                                                                             \
    throw std::runtime_error("PyAV brings an FFmpeg without " #name ": pip install --upgrade av");
  PENSTOCK_FFMPEG(PENSTOCK_FIND)
#undef PENSTOCK_FIND
  if (const unsigned found = avcodec_version() >> 16; found != version)
    throw std::runtime_error("PyAV brings libavcodec " + std::to_string(found) + ", and " +
                             std::to_string(version) + " is known: pip install 'av==18.*'");
}

}  // namespace penstock::codecs
