module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<24xi32>, %arg1: tensor<24xi32>, %arg2: tensor<24xf32>, %arg3: tensor<64x16xf32>) -> (tensor<32x16xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<24> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %1 = call @_pad(%arg0, %c_0) : (tensor<24xi32>, tensor<i32>) -> tensor<24xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %2 = call @_pad(%arg1, %c_1) : (tensor<24xi32>, tensor<i32>) -> tensor<24xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %3 = call @_pad_0(%arg2, %c_2) : (tensor<24xf32>, tensor<i32>) -> tensor<24xf32>
    %c_3 = stablehlo.constant dense<1> : tensor<i32>
    %4 = stablehlo.custom_call @jte_lookup_cpu(%0, %1, %2, %3, %c_3, %arg3) {backend_config = "", mhlo.backend_config = {enable_minibatching = false, num_devices = 1 : i64, num_sc_per_device = 1 : i64, quantization = dense<> : tensor<0xf64>}, operand_layouts = [dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>, dense<> : tensor<0xindex>, dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]} : (tensor<8xi32>, tensor<24xi32>, tensor<24xi32>, tensor<24xf32>, tensor<i32>, tensor<64x16xf32>) -> tensor<32x16xf32>
    return %4 : tensor<32x16xf32>
  }
  func.func private @_pad(%arg0: tensor<24xi32>, %arg1: tensor<i32>) -> tensor<24xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.pad %arg0, %0, low = [0], high = [0], interior = [0] : (tensor<24xi32>, tensor<i32>) -> tensor<24xi32>
    return %1 : tensor<24xi32>
  }
  func.func private @_pad_0(%arg0: tensor<24xf32>, %arg1: tensor<i32>) -> tensor<24xf32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %1 = stablehlo.pad %arg0, %0, low = [0], high = [0], interior = [0] : (tensor<24xf32>, tensor<f32>) -> tensor<24xf32>
    return %1 : tensor<24xf32>
  }
}
