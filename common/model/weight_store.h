// Packed matrices by content, so that models loaded into one process hold equal ones once:
// fine-tunes that leave most layers of their base as they were, a head that equals the embedding.
//
//   WeightStore store;                       // outlives nothing: matrices do not refer to it
//   options.store = &store;
//   auto base = Model::Load(base_source, options);
//   auto tuned = Model::Load(tuned_source, options);   // packs only what differs
//
// The store keeps nothing alive: a matrix goes with the last model that uses it. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/base/mutex.h"
#include "kernels/packed_matrix.h"

namespace baton {

class WeightStore {
 public:
  // `key` is a digest of everything that the packed bytes depend on.
  std::optional<PackedMatrix> Find(const std::string& key) const EXCLUDES(mu_);
  // Keeps the first of a key: returns what is in the store afterwards.
  PackedMatrix Add(const std::string& key, PackedMatrix matrix) EXCLUDES(mu_);
  // Of the matrices that some model holds, each counted once.
  std::int64_t bytes() const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::unordered_map<std::string, WeakPackedMatrix> matrices_ GUARDED_BY(mu_);
};

}  // namespace baton
