// Keeps gRPC's callback threads for as long as the process lives.
//
// gRPC (1.51) ends them when the last channel and server of the process go. A callback that holds
// the last share of a channel ends the thread it runs on: gRPC joins the thread with itself, frees
// its queue and aborts ("assertion failed: prior > 0"). Whoever drops a channel can't know whether
// a callback that has done its work still holds a share, so nobody's may be the last.
#pragma once

namespace baton {

// MakeChannel and RpcServer::Start call it. Any thread, any number of times; never blocks.
void KeepCallbackThreads();

}  // namespace baton
