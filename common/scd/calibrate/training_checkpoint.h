// A training that was cut short, on disk.
//
//   SaveTraining("a.training", key, state, optimizer);         // after every epoch
//   if (LoadTraining("a.training", key, state, optimizer)) ... // and go on after state.epochs
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace at {
class Tensor;
}
namespace torch::optim {
class Optimizer;
}

namespace baton {

struct TrainingState {
  int epochs = 0;                      // that are done
  std::vector<double> judged_kl;       // KlTrainingResult
  std::vector<double> learned_kl;      // KlTrainingResult
  std::vector<at::Tensor> parameters;  // now
  std::vector<at::Tensor> best;        // of the best epoch; empty: the start is the best
};

// `key` says which training it is. The file is whole or not there: it is written beside `path` and
// renamed. UNAVAILABLE when it cannot be written.
absl::Status SaveTraining(const std::string& path, const std::string& key,
                          const TrainingState& state, const torch::optim::Optimizer& optimizer);

// False, and nothing changed, when there is no such file, none that can be read, or one of another
// training. `state` comes with the parameters as they are, whose shapes must be the file's.
bool LoadTraining(const std::string& path, const std::string& key, TrainingState& state,
                  torch::optim::Optimizer& optimizer);

}  // namespace baton
