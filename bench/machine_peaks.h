// What this machine reaches at best, measured: the roofs that an op's rate is held against.
//
// Read bandwidth: every thread sums its half of a buffer far larger than the caches, with eight
// vector accumulators, so that loads alone bound it. FMA: twelve independent chains of fused
// multiply-adds in registers, on the widest vectors that the CPU kernels use here; a multiply and
// an add are two operations. Both are the best of several short windows, because a neighbour can
// only slow them down.
#pragma once

#include "kernels/executor.h"

namespace baton {

struct MachinePeaks {
  double read_bytes_per_s = 0;
  double flop_per_s = 0;  // fp32
};

// With all threads of `executor`; takes about a second.
MachinePeaks MeasureMachinePeaks(Executor& executor);

}  // namespace baton
