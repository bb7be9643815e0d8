// Files that are written beside their place and then renamed: a reader sees the old one or the
// whole new one, also after a crash.
//
//   BATON_RETURN_IF_ERROR(ReplaceFile(path, text));
//   BATON_RETURN_IF_ERROR(ReplaceFileWith(path, [&](const std::string& part) { ... }));
//
// Both write `path`.part; two writers of one path must take turns. After an error `path` is as it
// was and the part is gone. UNAVAILABLE names the path.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

struct ReplaceFileOptions {
  // The content is on the disk before it gets its name. Without, a power cut may leave a file that
  // is not whole: for content that is checked when it is read.
  bool sync = true;
  unsigned mode = 0666;  // less the umask
};

absl::Status ReplaceFile(const std::string& path, std::string_view content,
                         ReplaceFileOptions options = {});

// For what writes to a path of its own accord. Errors of `write` are returned as they are.
absl::Status ReplaceFileWith(const std::string& path,
                             const std::function<absl::Status(const std::string& part)>& write);

}  // namespace baton
