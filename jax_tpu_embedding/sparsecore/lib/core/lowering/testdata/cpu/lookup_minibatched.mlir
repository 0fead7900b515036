module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>) -> (tensor<32x16xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.custom_call @jte_lookup_cpu(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) {backend_config = "", mhlo.backend_config = {enable_minibatching = true, num_devices = 1 : i64, num_sc_per_device = 4 : i64, quantization = dense<> : tensor<0xf64>}, operand_layouts = [dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>, dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    return %0 : tensor<32x16xf32>
  }
}
