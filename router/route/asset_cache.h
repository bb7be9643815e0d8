// Tokenizers and chat templates of the nodes' models, fetched once by content digest.
//
//   assets.GetTokenizer(digest, nodes, [](absl::StatusOr<std::shared_ptr<const Tokenizer>> t) {});
//
// An asset is taken only if it hashes to the digest it was asked for. Concurrent askers share one
// fetch; a failed fetch is forgotten, so that the next one tries again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "router/route/executor.h"
#include "router/route/node_health.h"

namespace baton {

inline constexpr uint64_t kMaxAssetBytes = uint64_t{64} << 20;

// Thread-safe.
class AssetCache {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<std::shared_ptr<const T>>)>;

  explicit AssetCache(RouterExecutor& executor) : executor_(executor) {}
  // Stops.
  ~AssetCache();
  // Ends fetches under way with UNAVAILABLE, and all later ones.
  void Stop() EXCLUDES(mu_);

  // `done` runs at once when the asset is there, else on the executor. Errors: UNAVAILABLE when no
  // node delivers it, FAILED_PRECONDITION when it is not what its digest says or can't be read.
  void GetTokenizer(const std::string& digest, std::vector<std::shared_ptr<Node>> sources,
                    Done<Tokenizer> done);
  void GetChatTemplate(const std::string& digest, std::vector<std::shared_ptr<Node>> sources,
                       Done<ChatTemplate> done);
  bool HasTokenizer(const std::string& digest) const EXCLUDES(mu_);

 private:
  template <typename T>
  struct Entry {
    std::shared_ptr<const T> value;  // null while fetching
    std::vector<Done<T>> waiters;
  };
  template <typename T>
  using Table = std::map<std::string, Entry<T>>;
  struct Fetch;

  template <typename T>
  Table<T>& TableOf() REQUIRES(mu_);
  template <typename T>
  void Get(const std::string& digest, std::vector<std::shared_ptr<Node>> sources, Done<T> done);
  template <typename T>
  void Finish(const std::string& digest, absl::StatusOr<std::string> data);
  void FetchFrom(const std::shared_ptr<Fetch>& fetch) EXCLUDES(mu_);
  void EndFetch(const std::shared_ptr<Fetch>& fetch, absl::StatusOr<std::string> data)
      EXCLUDES(mu_);

  RouterExecutor& executor_;
  mutable Mutex mu_;
  CondVar idle_;
  int fetching_ GUARDED_BY(mu_) = 0;  // until the waiters have heard
  bool stopped_ GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<Fetch>> fetches_ GUARDED_BY(mu_);  // asking a node
  Table<Tokenizer> tokenizers_ GUARDED_BY(mu_);
  Table<ChatTemplate> templates_ GUARDED_BY(mu_);
};

}  // namespace baton
