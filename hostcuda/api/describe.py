#!/usr/bin/env python3
"""Writes hostcuda's API description (one JSON file a library) from public headers and real export lists.

The description is what everything generated stands on: which functions a library exports, the ABI class, name and role of
every parameter, the library's status codes, and the *policy* hostcuda answers a call with when nobody wrote it by hand.
Run it when a new CUDA release is to be supported; the JSON it writes is checked in, so a build needs neither this tool, nor
libclang, nor NVIDIA's libraries.

  /usr/bin/python3 describe.py --include /usr/local/cuda/include --include SITE/nvidia/cusparselt/include \\
      --libraries SITE/nvidia/cu13/lib --libraries SITE/nvidia/cudnn/lib --libraries /usr/local/cuda/lib64/stubs \\
      --out hostcuda/api [--only libcublas]

Needs libclang's Python bindings (Debian: python3-clang-14) and nm.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

# Policies, in the order in which they are tried. A function takes the first policy whose pattern matches its whole name;
# without a match it is `unsupported`. They only apply to what is not written by hand.
#   size         answers the size it is asked for: 0, because hostcuda's libraries need no workspace
#   create       makes a handle that remembers its scalar parameters
#   destroy      frees such a handle
#   set, get     writes or reads what a handle remembers
#   compute      launches a kernel that exists by name only; the name carries operation and shapes
#   result       as compute, but only where the result goes to device memory (device pointer mode); else unsupported
#   version, property, status_name   answer from the description itself
#   unsupported  one line on stderr that names the call, and the library's not-supported status
POLICIES = ("size", "create", "destroy", "set", "get", "compute", "result", "version", "property", "status_name", "unsupported")

BLAS_COMPUTE = (
    r"axpy|copy|swap|scal|rot|rotm|gemv|ger|geru|gerc|symv|hemv|trmv|trsv|syr|her|syr2|her2|symm|hemm|syrk|herk|syr2k|her2k|"
    r"syrkx|herkx|trmm|trsm|geam|dgmm|gbmv|sbmv|hbmv|tbmv|tbsv|spmv|hpmv|spr|hpr|spr2|hpr2|tpmv|tpsv|tpttr|trttp|gemvBatched|"
    r"gemvStridedBatched|trsmBatched|getrfBatched|getrsBatched|getriBatched|geqrfBatched|gelsBatched|matinvBatched")
SOLVER_COMPUTE = (
    r"potrf|potrs|potri|potrfBatched|potrsBatched|getrf|getrs|geqrf|orgqr|ungqr|ormqr|unmqr|orgbr|ungbr|orgtr|ungtr|ormtr|unmtr|"
    r"sytrf|sytrs|sytri|hetrf|sytrd|hetrd|gebrd|syevd|heevd|syevj|heevj|syevBatched|syevjBatched|heevjBatched|"
    r"sygvd|hegvd|sygvj|hegvj|gesvd|gesvdp|gesvdr|gesvdj|gesvdjBatched|gesvdaStridedBatched|geev|larft|laswp|lauum|"
    r"trtri")

# One entry a library: SONAME and version node, headers, which exports belong to the API, the status type with its success and
# not-supported values, where versions stand in the headers, and the policies.
LIBRARIES = {
    "libcuda": dict(
        soname="libcuda.so.1", file="libcuda.so", headers=["cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"],
        symbols=r"cu[A-Z]\w*", defines=["-D__CUDA_API_VERSION_INTERNAL"], status="CUresult", not_supported=801, policies={}),
    "libcudart": dict(
        soname="libcudart.so.13", node="libcudart.so.13", headers=["cuda_runtime_api.h", "cuda_profiler_api.h", "cuda_gl_interop.h", "cuda_egl_interop.h", "cuda_vdpau_interop.h"],
        symbols=r"(__)?cuda\w+", defines=["-D__CUDA_API_VERSION_INTERNAL"], status="cudaError_t", not_supported=801, policies={}),
    "libcublas": dict(
        soname="libcublas.so.13", node="libcublas.so.13", headers=["cublas_v2.h", "cublasXt.h"], symbols=r"cublas\w+",
        status="cublasStatus_t", not_supported=15,
        version=("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"),
        policies={
            "result": r"cublas([SDCZ](dot[uc]?|nrm2|asum)|(Sc|Dz)(nrm2|asum)|I[sdcz]ama[xi]n?|I[sdcz]amin|Dot(c)?Ex|Nrm2Ex|AsumEx|IamaxEx|IaminEx)(_v2)?(_64)?",
            "compute": rf"cublas((S|D|C|Z|Cs|Zd)({BLAS_COMPUTE})|(Axpy|Scal|Rot|Copy|Swap)Ex|C(syrk|herk)(Ex|3mEx))(_v2)?(_64)?",
        },
        # `info` of these is on the host and only says that the arguments were valid.
        roles={r"cublas[SDCZ](getrs|gels|geqrf)Batched(_64)?": {"info": "zero_out"},
               r"cublas[SDCZ](getrf|getri|matinv)Batched(_64)?": {"info": "device_status"},
               r"cublas[SDCZ]gelsBatched": {"devInfoArray": "device_status"}}),
    "libcublasLt": dict(
        soname="libcublasLt.so.13", node="libcublasLt.so.13", headers=["cublasLt.h"], symbols=r"cublasLt\w+",
        status="cublasStatus_t", not_supported=15, version=("CUBLAS_VER_MAJOR", "CUBLAS_VER_MINOR", "CUBLAS_VER_PATCH"),
        policies={"status_name": r"cublasLtGetStatus(Name|String)"}),
    "libcudnn": dict(
        soname="libcudnn.so.9", node="libcudnn.so.9", headers=["cudnn.h"], symbols=r"cudnn\w+", status="cudnnStatus_t",
        not_supported=3000, version=("CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"),
        policies={
            "size": r"cudnnGet\w+(WorkspaceSize|ReserveSpaceSize|TempSpaceSizes)(_v8)?|cudnnDropoutGet(States|ReserveSpace)Size|cudnnGetReductionIndicesSize",
            "create": r"cudnnCreate(Activation|CTCLoss|Dropout|Pooling|RNNData|SpatialTransformer|LRN|OpTensor|ReduceTensor)Descriptor",
            "destroy": r"cudnnDestroy(Activation|CTCLoss|Dropout|Pooling|RNNData|SpatialTransformer|LRN|OpTensor|ReduceTensor)Descriptor",
            "set": r"cudnn(Set|Restore)(Activation|CTCLoss|Dropout|Pooling2d|RNNData|SpatialTransformerNd|LRN|OpTensor|ReduceTensor)Descriptor(Ex|SwishBeta|_v8|_v9)?",
            "get": r"cudnnGet(Activation|Pooling2d|LRN|OpTensor|ReduceTensor)Descriptor",
            "compute": r"cudnn((Activation|Softmax|Pooling|LRNCrossChannel|DivisiveNormalization|Dropout)(Forward|Backward)|AddTensor|OpTensor|ReduceTensor|ScaleTensor|SetTensor"
                       r"|TransformTensor(Ex)?|(BatchNormalization|Normalization)(ForwardTraining|ForwardInference|Backward)(Ex)?|CTCLoss(_v8)?"
                       r"|SpatialTf(GridGenerator|Sampler)(Forward|Backward)|ConvolutionBackwardBias|RNNForward|RNNBackward(Data|Weights)_v8)",
            "property": r"cudnnGetProperty", "status_name": r"cudnnGetErrorString",
        }),
    "libcusparse": dict(
        soname="libcusparse.so.12", node="libcusparse.so.12", headers=["cusparse.h"], symbols=r"cusparse\w+",
        status="cusparseStatus_t", not_supported=10, version=("CUSPARSE_VER_MAJOR", "CUSPARSE_VER_MINOR", "CUSPARSE_VER_PATCH"),
        policies={
            "size": r"cusparse\w+_bufferSize(Ext)?",
            "create": r"cusparseCreate|cusparseCreate(MatDescr|Bsrs[vm]2Info)|cusparseCreate(Const)?(Csr|Csc|Coo|Bsr|SpVec|DnVec|DnMat)|cusparseSp(SV|SM)_createDescr",
            "destroy": r"cusparseDestroy|cusparseDestroy(MatDescr|Bsrs[vm]2Info|SpMat|SpVec|DnVec|DnMat)|cusparseSp(SV|SM)_destroyDescr",
            "set": r"cusparseSet(Stream|PointerMode|MatType|MatFillMode|MatDiagType|MatIndexBase)|cusparse(Csr|Csc|Coo|Bsr)Set(Pointers|StridedBatch)|cusparseDnMatSetStridedBatch|cusparseSpMatSetAttribute",
            "get": r"cusparseGet(Stream|PointerMode)|cusparseSpMatGetSize",
            "compute": r"cusparse(SpMM|SpMV|SDDMM|SpMM_preprocess|SpMV_preprocess|SDDMM_preprocess|SpS[VM]_(analysis|solve)|SparseToDense|Gather|Scatter|Axpby|Rot"
                       r"|[SDCZ](bsrmm|bsrmv|bsrs[vm]2_(analysis|solve)|csrgeam2|gtsv\w*|nnz_dummy)|Xcoo2csr|Xcsr2coo|XcoosortBy(Row|Column)|Xcs[rc]sort|CreateIdentityPermutation)",
            "version": r"cusparseGetVersion", "property": r"cusparseGetProperty", "status_name": r"cusparseGetError(String|Name)",
        }),
    "libcusparseLt": dict(
        soname="libcusparseLt.so.0", headers=["cusparseLt.h"], defines=["-Dalignas(x)="], symbols=r"cusparseLt\w+", status="cusparseStatus_t", not_supported=10,
        version=("CUSPARSELT_VER_MAJOR", "CUSPARSELT_VER_MINOR", "CUSPARSELT_VER_PATCH"),
        policies={
            "create": r"cusparseLtInit|cusparseLt(Dense|Structured|Matmul)DescriptorInit|cusparseLtMatmul(AlgSelection|Plan)Init",
            "destroy": r"cusparseLtDestroy|cusparseLtMatDescriptorDestroy|cusparseLtMatmul(AlgSelection|Plan)Destroy",
            "set": r"cusparseLt(MatDesc|MatmulDesc|MatmulAlg)SetAttribute",
            "get": r"cusparseLt(MatDesc|MatmulDesc|MatmulAlg)GetAttribute",
            "size": r"cusparseLtMatmulGetWorkspace",
            "compute": r"cusparseLtMatmul|cusparseLtSpMMA(Compress|Prune)2?",
            "version": r"cusparseLtGetVersion", "property": r"cusparseLtGetProperty", "status_name": r"cusparseLtGetError(String|Name)",
        }),
    "libcusolver": dict(
        soname="libcusolver.so.12", node="libcusolver.so.12", headers=["cusolverDn.h", "cusolverSp.h", "cusolverRf.h", "cusolverSp_LOWLEVEL_PREVIEW.h"],
        symbols=r"cusolver\w+", status="cusolverStatus_t", not_supported=9, version=("CUSOLVER_VER_MAJOR", "CUSOLVER_VER_MINOR", "CUSOLVER_VER_PATCH"),
        policies={
            "size": r"cusolverDn\w+_bufferSize",
            "create": r"cusolverDnCreate(Params|GesvdjInfo|SyevjInfo)?",
            "destroy": r"cusolverDnDestroy(Params|GesvdjInfo|SyevjInfo)?",
            "set": r"cusolverDnSet(Stream|AdvOptions|DeterministicMode)|cusolverDnX(gesvdj|syevj)Set(Tolerance|MaxSweeps|SortEig)",
            "get": r"cusolverDnGetStream",
            "compute": rf"cusolverDn[SDCZX]({SOLVER_COMPUTE})",
            "version": r"cusolverGetVersion", "property": r"cusolverGetProperty",
        },
        roles={r"cusolverDn\w+": {"devInfo": "device_status", "info": "device_status", "d_info": "device_status", "infoArray": "device_status"},
               r"cusolverDn[SDCZ]gesvdaStridedBatched": {"h_R_nrmF": "nan_out"}}),
    "libcufft": dict(
        soname="libcufft.so.12", node="libcufft.so.12", headers=["cufft.h", "cufftXt.h"], symbols=r"cufft\w+", status="cufftResult",
        not_supported=16, version=("CUFFT_VER_MAJOR", "CUFFT_VER_MINOR", "CUFFT_VER_PATCH"), policies={}),
    "libcurand": dict(
        soname="libcurand.so.10", node="libcurand.so.10", headers=["curand.h"], symbols=r"curand\w+", status="curandStatus_t",
        not_supported=999, version=("CURAND_VER_MAJOR", "CURAND_VER_MINOR", "CURAND_VER_PATCH"),
        policies={
            "create": r"curandCreateGenerator", "destroy": r"curandDestroyGenerator",
            "set": r"curandSet(Stream|PseudoRandomGeneratorSeed|GeneratorOffset|GeneratorOrdering|QuasiRandomGeneratorDimensions)",
            "compute": r"curandGenerate(LongLong|Uniform(Double)?|Normal(Double)?|LogNormal(Double)?|Poisson|Binomial|Seeds)?",
            "version": r"curandGetVersion", "property": r"curandGetProperty",
        }),
    "libcupti": dict(
        soname="libcupti.so.13", node="libcupti.so.13", headers=["cupti.h", "cupti_profiler_target.h", "cupti_pcsampling.h", "cupti_range_profiler.h", "cupti_pmsampling.h", "cupti_sass_metrics.h", "cupti_checkpoint.h"],
        symbols=r"cupti\w+", status="CUptiResult", not_supported=27, policies={}),
    "libnccl": dict(
        soname="libnccl.so.2", headers=["nccl.h"], symbols=r"p?nccl[A-Z]\w+", status="ncclResult_t", not_supported=5,
        version=("NCCL_MAJOR", "NCCL_MINOR", "NCCL_PATCH"), policies={}),
    "libnvml": dict(
        soname="libnvidia-ml.so.1", headers=["nvml.h"], defines=["-DNVML_NO_UNVERSIONED_FUNC_DEFS"], symbols=r"nvml\w+", status="nvmlReturn_t", not_supported=3, policies={"status_name": r"nvmlErrorString"}),
    "libcufile": dict(
        soname="libcufile.so.0", headers=["cufile.h"], symbols=r"cuFile\w+", status="CUfileError_t", not_supported=5003, policies={}),
    "libnvshmem_host": dict(
        soname="libnvshmem_host.so.3", node="NVSHMEM", headers=[], symbols=r"nvshmem\w+", status="", not_supported=7, policies={}),
}

# Exports whose prototype no public header shows: the same as another function's.
SAME_PROTOTYPE = [(r"(.*)_pts[zd]", r"\1"), (r"(.*)_v\d+_pts[zd]", r"\1_v2"), (r"(.*)_v2", r"\1"), (r"p(nccl.*)", r"\1")]
SIZE_NAME = re.compile(r"lwork|buffersize|worksize|sizeinbytes|workspaceinbytes|spacesize|workspacesize", re.I)


def exports(path):
    """Returns {name: kind} of the dynamic symbols `path` defines; kind is 'function' or the size of a data object."""
    out = subprocess.run(["nm", "-D", "-S", "--defined-only", path], check=True, capture_output=True, text=True).stdout
    found = {}
    for line in out.splitlines():
        fields = line.split()
        kind, name = fields[-2], fields[-1].split("@")[0]
        if kind in "TWi":
            found[name] = "function"
        elif kind in "BDRV" and len(fields) == 4:
            found[name] = int(fields[1], 16)
    return found


class Headers:
    """Prototypes, enumerators and macros of one library's public headers."""

    def __init__(self, headers, includes, defines):
        import clang.cindex as cindex
        self.cindex = cindex
        self.functions, self.enums, self.macros = {}, {}, {}
        present = [h for h in headers if any(os.path.exists(os.path.join(i, h)) for i in includes)]
        for missing in sorted(set(headers) - set(present)):
            print(f"describe: {missing} is in none of the include directories; its functions have no prototypes", file=sys.stderr)
        if not present:
            return
        text = "".join(f"#include <{h}>\n" for h in present)
        with tempfile.TemporaryDirectory() as scratch:
            source = os.path.join(scratch, "headers.c")
            for name, contents in (("headers.c", text), ("cstddef", "#include <stddef.h>\n"), ("cstdint", "#include <stdint.h>\n")):
                with open(os.path.join(scratch, name), "w") as out:
                    out.write(contents)
            arguments = [f"-I{i}" for i in includes] + [f"-I{scratch}", "-DCUDA_ENABLE_DEPRECATED", "-DCUFFT_ENABLE_DEPRECATED", *defines]
            # libclang finds its own stddef.h only next to the library it came with.
            resource = subprocess.run(["clang-14", "-print-resource-dir"], capture_output=True, text=True).stdout.strip()
            arguments += ["-isystem", resource + "/include"]
            unit = cindex.Index.create().parse(source, arguments, options=cindex.TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
        errors = [d for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Error]
        for diagnostic in errors[:5]:
            print(f"describe: {diagnostic.location.file}:{diagnostic.location.line}: {diagnostic.spelling}", file=sys.stderr)
        for cursor in unit.cursor.get_children():
            if cursor.kind == cindex.CursorKind.FUNCTION_DECL:
                self.functions[cursor.spelling] = cursor
            elif cursor.kind == cindex.CursorKind.MACRO_DEFINITION:
                tokens = [t.spelling for t in cursor.get_tokens()]
                if len(tokens) == 2 and tokens[1].isdigit():
                    self.macros[tokens[0]] = int(tokens[1])
            elif cursor.kind == cindex.CursorKind.TYPEDEF_DECL:
                declaration = cursor.underlying_typedef_type.get_canonical().get_declaration()
                if declaration.kind == cindex.CursorKind.ENUM_DECL:
                    self.enums[cursor.spelling] = {e.spelling: e.enum_value for e in declaration.get_children() if e.kind == cindex.CursorKind.ENUM_CONSTANT_DECL}

    def abi(self, type_):
        """The class in which the x86-64 ABI passes `type_`: i32, u64, f64, ptr, or s<bytes>[f] for a structure."""
        k = self.cindex.TypeKind
        t = type_.get_canonical()
        if t.kind == k.VOID:
            return "void"
        if t.kind in (k.POINTER, k.CONSTANTARRAY, k.INCOMPLETEARRAY, k.VARIABLEARRAY):
            return "ptr"
        if t.kind == k.ENUM:
            return "i32"
        size = t.get_size()
        if t.kind == k.FLOAT or t.kind == k.DOUBLE:
            return f"f{size * 8}"
        if t.kind == k.RECORD:
            floating = all(f.type.get_canonical().kind in (k.FLOAT, k.DOUBLE) for f in t.get_fields())
            return f"s{size}" + ("f" if floating else "")
        signed = t.kind in (k.CHAR_S, k.SCHAR, k.SHORT, k.INT, k.LONG, k.LONGLONG)
        return f"{'i' if signed else 'u'}{size * 8}"

    def opaque(self, type_):
        """True if values of `type_` are handles: pointers to a structure the headers do not define."""
        k = self.cindex.TypeKind
        t = type_.get_canonical()
        if t.kind != k.POINTER:
            return False
        p = t.get_pointee().get_canonical()
        if p.kind == k.RECORD:
            return p.get_declaration().get_definition() is None
        return p.kind == k.VOID and bool(re.search(r"(Handle|Descriptor|Desc|Info|Params)_t$", type_.spelling))

    def in_place(self, type_):
        """True for pointers to a handle that the caller stores: a structure of one opaque byte array."""
        k = self.cindex.TypeKind
        t = type_.get_canonical()
        if t.kind != k.POINTER:
            return False
        p = t.get_pointee().get_canonical()
        if p.kind != k.RECORD or p.get_size() < 64:
            return False
        fields = list(p.get_fields())
        return len(fields) == 1 and fields[0].spelling == "data" and fields[0].type.kind == k.CONSTANTARRAY

    def parameter(self, cursor, index):
        k = self.cindex.TypeKind
        type_, name = cursor.type, cursor.spelling or f"arg{index}"
        abi = self.abi(type_)
        text = f"{name}:{abi}"
        if abi != "ptr":
            if type_.spelling == "cufftHandle":
                text += ":handle:cufftHandle"
            return text
        canonical = type_.get_canonical()
        pointee = canonical.get_pointee() if canonical.kind == k.POINTER else canonical.get_array_element_type()
        if pointee.kind in (k.FUNCTIONPROTO, k.FUNCTIONNOPROTO):
            return text + ":callback"
        spelled = pointee.get_canonical().spelling
        if "CUstream_st" in spelled:
            return text + (":streams" if pointee.get_canonical().kind == k.POINTER else ":stream")
        if self.opaque(type_):
            return text + ":handle:" + type_.spelling.replace("const ", "")
        if self.in_place(type_):
            return text + (":object:" if pointee.is_const_qualified() else ":object_out:") + pointee.spelling.replace("const ", "")
        if pointee.is_const_qualified() or pointee.kind == k.VOID:
            return text
        # The typedef'd spelling of the pointee, for `cusparseHandle_t* handle`.
        declared = type_.get_pointee() if type_.kind == k.POINTER else pointee
        if self.opaque(declared):
            return text + ":handle_out:" + declared.spelling
        if declared.spelling == "cufftHandle":
            return text + ":handle_out:cufftHandle"
        inner = self.abi(pointee)
        if inner == "ptr" or inner.startswith("s") or inner == "void":
            return text
        if SIZE_NAME.search(name) and inner in ("i32", "u32", "i64", "u64"):
            return text + ":size_out:" + inner
        return text + ":out:" + inner


def policy_of(name, spec):
    for policy in POLICIES:
        pattern = spec["policies"].get(policy)
        if pattern and re.fullmatch(pattern, name):
            return policy
    return "unsupported"


def describe(library, spec, includes, directories):
    headers = Headers(spec["headers"], includes, spec.get("defines", []))
    path = next((p for d in directories for p in (os.path.join(d, spec.get("file", spec["soname"])),) if os.path.exists(p)), None)
    symbols = exports(path) if path else {}
    if not path:
        print(f"describe: no {spec['soname']} in the library directories; {library}'s exports are those the headers declare", file=sys.stderr)
        symbols = {n: "function" for n in headers.functions}
    names = sorted(n for n, kind in symbols.items() if kind == "function" and re.fullmatch(spec["symbols"], n))
    functions, unknown = [], 0
    for name in names:
        cursor = headers.functions.get(name)
        for pattern, replacement in SAME_PROTOTYPE:
            if cursor is None and re.fullmatch(pattern, name):
                cursor = headers.functions.get(re.sub(f"^{pattern}$", replacement, name))
        if cursor is None:
            unknown += 1
            functions.append({"name": name, "policy": "unsupported"})
            continue
        result = headers.abi(cursor.result_type)
        returns = "status" if cursor.result_type.spelling == spec["status"] else result
        if result == "ptr" and cursor.result_type.get_canonical().get_pointee().get_canonical().kind == headers.cindex.TypeKind.CHAR_S:
            returns = "text"
        parameters = [headers.parameter(p, i) for i, p in enumerate(cursor.get_arguments())]
        policy = policy_of(name, spec)
        for pattern, roles in spec.get("roles", {}).items():
            if re.fullmatch(pattern, name):
                parameters = [p.replace(":out:", f":{roles[label]}:") if (label := p.split(":")[0]) in roles else p for p in parameters]
        functions.append({"name": name, "returns": returns, "policy": policy, "params": parameters})
    data = sorted((n, size) for n, size in symbols.items() if size != "function" and re.fullmatch(spec["symbols"], n))
    head = {"library": library, "soname": spec["soname"], "node": spec.get("node", ""), "status": spec["status"], "success": 0,
            "not_supported": spec["not_supported"]}
    if "version" in spec and all(m in headers.macros for m in spec["version"]):
        head["version"] = [headers.macros[m] for m in spec["version"]]
    head["status_values"] = headers.enums.get(spec["status"], {})
    head["data"] = data
    return head, functions, unknown


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--include", action="append", default=[], help="directory with public headers (repeat)")
    parser.add_argument("--libraries", action="append", default=[], help="directory with the real libraries or their stubs (repeat)")
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)), help="where the JSON files go")
    parser.add_argument("--only", action="append", default=[], help="describe this library only (repeat)")
    arguments = parser.parse_args()
    for library in arguments.only or LIBRARIES:
        if library not in LIBRARIES:
            parser.error(f"--only {library}: known are {', '.join(LIBRARIES)}")
        head, functions, unknown = describe(library, LIBRARIES[library], arguments.include, arguments.libraries)
        with open(os.path.join(arguments.out, library + ".json"), "w") as out:
            # One line a function, so that a new CUDA release shows as a readable diff.
            text = json.dumps(head, separators=(", ", ": "))
            lines = ",\n".join(json.dumps(f, separators=(",", ":")) for f in functions)
            out.write(f'{text[:-1]}, "functions": [\n{lines}\n]}}\n')
        print(f"{library}: {len(functions)} functions, {unknown} without a public prototype, version {head.get('version')}")


if __name__ == "__main__":
    main()
