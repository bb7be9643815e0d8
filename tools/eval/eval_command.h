// `baton eval`: measures what serving costs in quality. A program of its own (baton-eval), for
// LibTorch's sake.
#pragma once

namespace baton::tools {

// Exit code: 0 done, 1 it failed, 2 bad usage. What went wrong is said on stderr.
int RunEval(int argc, const char* const* argv);

}  // namespace baton::tools
