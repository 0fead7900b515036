module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<i32>) -> (tensor<2048xi32> {jax.result_info = "result[0]"}, tensor<1xi1> {jax.result_info = "result[1]"}) {
    %0:2 = stablehlo.custom_call @jte_check_batch_cpu(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5) {backend_config = "", mhlo.backend_config = {batch_size = 32 : i64, enable_minibatching = true, num_devices = 1 : i64, num_sc_per_device = 4 : i64, rows_per_device = 64 : i64}, operand_layouts = [dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>, dense<> : tensor<0xindex>], result_layouts = [dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<i32>) -> (tensor<2048xi32>, tensor<1xi1>)
    return %0#0, %0#1 : tensor<2048xi32>, tensor<1xi1>
  }
}
