// Every error of the driver and of the runtime: X(code, driver's name or null, runtime's name or
// null, text).
//
// Both libraries number their errors alike, so one table serves both. The texts of the common
// errors are the ones that programs and their logs are used to.
#ifndef HOSTCUDA_DRIVER_ERROR_TABLE_H_
#define HOSTCUDA_DRIVER_ERROR_TABLE_H_

// clang-format off
#define HOSTCUDA_ERRORS(X) \
  X(0, "CUDA_SUCCESS", "cudaSuccess", "no error") \
  X(1, "CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument") \
  X(2, "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory") \
  X(3, "CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error") \
  X(4, "CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading", "driver shutting down") \
  X(5, "CUDA_ERROR_PROFILER_DISABLED", "cudaErrorProfilerDisabled", "profiler disabled") \
  X(6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "cudaErrorProfilerNotInitialized", "profiler not initialized") \
  X(7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "cudaErrorProfilerAlreadyStarted", "profiler already started") \
  X(8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "cudaErrorProfilerAlreadyStopped", "profiler already stopped") \
  X(9, nullptr, "cudaErrorInvalidConfiguration", "invalid configuration argument") \
  X(12, nullptr, "cudaErrorInvalidPitchValue", "invalid pitch argument") \
  X(13, nullptr, "cudaErrorInvalidSymbol", "invalid device symbol") \
  X(16, nullptr, "cudaErrorInvalidHostPointer", "invalid host pointer") \
  X(17, nullptr, "cudaErrorInvalidDevicePointer", "invalid device pointer") \
  X(18, nullptr, "cudaErrorInvalidTexture", "invalid texture") \
  X(19, nullptr, "cudaErrorInvalidTextureBinding", "invalid texture binding") \
  X(20, nullptr, "cudaErrorInvalidChannelDescriptor", "invalid channel descriptor") \
  X(21, nullptr, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy") \
  X(22, nullptr, "cudaErrorAddressOfConstant", "address of constant") \
  X(23, nullptr, "cudaErrorTextureFetchFailed", "texture fetch failed") \
  X(24, nullptr, "cudaErrorTextureNotBound", "texture not bound") \
  X(25, nullptr, "cudaErrorSynchronizationError", "synchronization error") \
  X(26, nullptr, "cudaErrorInvalidFilterSetting", "invalid filter setting") \
  X(27, nullptr, "cudaErrorInvalidNormSetting", "invalid norm setting") \
  X(28, nullptr, "cudaErrorMixedDeviceExecution", "mixed device execution") \
  X(31, nullptr, "cudaErrorNotYetImplemented", "not yet implemented") \
  X(32, nullptr, "cudaErrorMemoryValueTooLarge", "memory value too large") \
  X(34, "CUDA_ERROR_STUB_LIBRARY", "cudaErrorStubLibrary", "stub library") \
  X(35, nullptr, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version") \
  X(36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "cudaErrorCallRequiresNewerDriver", "call requires newer driver") \
  X(37, nullptr, "cudaErrorInvalidSurface", "invalid surface") \
  X(43, nullptr, "cudaErrorDuplicateVariableName", "duplicate variable name") \
  X(44, nullptr, "cudaErrorDuplicateTextureName", "duplicate texture name") \
  X(45, nullptr, "cudaErrorDuplicateSurfaceName", "duplicate surface name") \
  X(46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "cudaErrorDevicesUnavailable", "device unavailable") \
  X(49, nullptr, "cudaErrorIncompatibleDriverContext", "incompatible driver context") \
  X(52, nullptr, "cudaErrorMissingConfiguration", "missing configuration") \
  X(53, nullptr, "cudaErrorPriorLaunchFailure", "prior launch failure") \
  X(65, nullptr, "cudaErrorLaunchMaxDepthExceeded", "launch max depth exceeded") \
  X(66, nullptr, "cudaErrorLaunchFileScopedTex", "launch file scoped tex") \
  X(67, nullptr, "cudaErrorLaunchFileScopedSurf", "launch file scoped surf") \
  X(68, nullptr, "cudaErrorSyncDepthExceeded", "sync depth exceeded") \
  X(69, nullptr, "cudaErrorLaunchPendingCountExceeded", "launch pending count exceeded") \
  X(98, nullptr, "cudaErrorInvalidDeviceFunction", "invalid device function") \
  X(100, "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected") \
  X(101, "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal") \
  X(102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "cudaErrorDeviceNotLicensed", "device not licensed") \
  X(103, nullptr, "cudaErrorSoftwareValidityNotEstablished", "software validity not established") \
  X(127, nullptr, "cudaErrorStartupFailure", "startup failure") \
  X(200, "CUDA_ERROR_INVALID_IMAGE", "cudaErrorInvalidKernelImage", "device kernel image is invalid") \
  X(201, "CUDA_ERROR_INVALID_CONTEXT", "cudaErrorDeviceUninitialized", "invalid device context") \
  X(202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", nullptr, "context already current") \
  X(205, "CUDA_ERROR_MAP_FAILED", "cudaErrorMapBufferObjectFailed", "map failed") \
  X(206, "CUDA_ERROR_UNMAP_FAILED", "cudaErrorUnmapBufferObjectFailed", "unmap failed") \
  X(207, "CUDA_ERROR_ARRAY_IS_MAPPED", "cudaErrorArrayIsMapped", "array is mapped") \
  X(208, "CUDA_ERROR_ALREADY_MAPPED", "cudaErrorAlreadyMapped", "already mapped") \
  X(209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device") \
  X(210, "CUDA_ERROR_ALREADY_ACQUIRED", "cudaErrorAlreadyAcquired", "already acquired") \
  X(211, "CUDA_ERROR_NOT_MAPPED", "cudaErrorNotMapped", "not mapped") \
  X(212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "cudaErrorNotMappedAsArray", "not mapped as array") \
  X(213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "cudaErrorNotMappedAsPointer", "not mapped as pointer") \
  X(214, "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "ecc uncorrectable") \
  X(215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "cudaErrorUnsupportedLimit", "unsupported limit") \
  X(216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "cudaErrorDeviceAlreadyInUse", "context already in use") \
  X(217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices") \
  X(218, "CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx", "a PTX JIT compilation failed") \
  X(219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "cudaErrorInvalidGraphicsContext", "invalid graphics context") \
  X(220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "cudaErrorNvlinkUncorrectable", "nvlink uncorrectable") \
  X(221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "cudaErrorJitCompilerNotFound", "jit compiler not found") \
  X(222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion", "unsupported ptx version") \
  X(223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "cudaErrorJitCompilationDisabled", "jit compilation disabled") \
  X(224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "cudaErrorUnsupportedExecAffinity", "unsupported exec affinity") \
  X(225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "cudaErrorUnsupportedDevSideSync", "unsupported devside sync") \
  X(226, "CUDA_ERROR_CONTAINED", "cudaErrorContained", "contained") \
  X(300, "CUDA_ERROR_INVALID_SOURCE", "cudaErrorInvalidSource", "device kernel image is invalid") \
  X(301, "CUDA_ERROR_FILE_NOT_FOUND", "cudaErrorFileNotFound", "file not found") \
  X(302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "cudaErrorSharedObjectSymbolNotFound", "shared object symbol not found") \
  X(303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "cudaErrorSharedObjectInitFailed", "shared object init failed") \
  X(304, "CUDA_ERROR_OPERATING_SYSTEM", "cudaErrorOperatingSystem", "OS call failed or operation not supported on this OS") \
  X(400, "CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle", "invalid resource handle") \
  X(401, "CUDA_ERROR_ILLEGAL_STATE", "cudaErrorIllegalState", "the operation cannot be performed in the present state") \
  X(402, "CUDA_ERROR_LOSSY_QUERY", "cudaErrorLossyQuery", "lossy query") \
  X(500, "CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found") \
  X(600, "CUDA_ERROR_NOT_READY", "cudaErrorNotReady", "device not ready") \
  X(700, "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access was encountered") \
  X(701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cudaErrorLaunchOutOfResources", "too many resources requested for launch") \
  X(702, "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "the launch timed out and was terminated") \
  X(703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "cudaErrorLaunchIncompatibleTexturing", "launch incompatible texturing") \
  X(704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "cudaErrorPeerAccessAlreadyEnabled", "peer access is already enabled") \
  X(705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "cudaErrorPeerAccessNotEnabled", "peer access has not been enabled") \
  X(708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cudaErrorSetOnActiveProcess", "cannot set while device is active in this process") \
  X(709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "cudaErrorContextIsDestroyed", "context is destroyed") \
  X(710, "CUDA_ERROR_ASSERT", "cudaErrorAssert", "device-side assert triggered") \
  X(711, "CUDA_ERROR_TOO_MANY_PEERS", "cudaErrorTooManyPeers", "too many peers") \
  X(712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped") \
  X(713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region") \
  X(714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "cudaErrorHardwareStackError", "hardware stack error") \
  X(715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction", "illegal instruction") \
  X(716, "CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", "misaligned address") \
  X(717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace", "invalid address space") \
  X(718, "CUDA_ERROR_INVALID_PC", "cudaErrorInvalidPc", "invalid pc") \
  X(719, "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure") \
  X(720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "cudaErrorCooperativeLaunchTooLarge", "too many blocks in cooperative launch") \
  X(721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "cudaErrorTensorMemoryLeak", "tensor memory leak") \
  X(800, "CUDA_ERROR_NOT_PERMITTED", "cudaErrorNotPermitted", "operation not permitted") \
  X(801, "CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported") \
  X(802, "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", "system not yet initialized") \
  X(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch", "system driver mismatch") \
  X(804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice", "compat not supported on device") \
  X(805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "cudaErrorMpsConnectionFailed", "mps connection failed") \
  X(806, "CUDA_ERROR_MPS_RPC_FAILURE", "cudaErrorMpsRpcFailure", "mps rpc failure") \
  X(807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "cudaErrorMpsServerNotReady", "mps server not ready") \
  X(808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "cudaErrorMpsMaxClientsReached", "mps max clients reached") \
  X(809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "cudaErrorMpsMaxConnectionsReached", "mps max connections reached") \
  X(810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "cudaErrorMpsClientTerminated", "mps client terminated") \
  X(811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "cudaErrorCdpNotSupported", "cdp not supported") \
  X(812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "cudaErrorCdpVersionMismatch", "cdp version mismatch") \
  X(900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing") \
  X(901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture") \
  X(902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "cudaErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences") \
  X(903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "cudaErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began") \
  X(904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work") \
  X(905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream") \
  X(906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "cudaErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream") \
  X(907, "CUDA_ERROR_CAPTURED_EVENT", "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream") \
  X(908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "cudaErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread") \
  X(909, "CUDA_ERROR_TIMEOUT", "cudaErrorTimeout", "wait operation timed out") \
  X(910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update") \
  X(911, "CUDA_ERROR_EXTERNAL_DEVICE", "cudaErrorExternalDevice", "external device") \
  X(912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "cudaErrorInvalidClusterSize", "invalid cluster size") \
  X(913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "cudaErrorFunctionNotLoaded", "function not loaded") \
  X(914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "cudaErrorInvalidResourceType", "invalid resource type") \
  X(915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "cudaErrorInvalidResourceConfiguration", "invalid resource configuration") \
  X(916, "CUDA_ERROR_KEY_ROTATION", nullptr, "key rotation") \
  X(999, "CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error")
// clang-format on

#endif  // HOSTCUDA_DRIVER_ERROR_TABLE_H_
