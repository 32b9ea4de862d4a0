"""Mistakes that only timed runs have: in 32 bits, late, with a second seed, between steps, or in an evaluation.

None of them shows in the first twenty steps in 64 bits.
"""

STEP = "    scaler.step(optimizer)\n"
ZERO = "    optimizer.zero_grad(set_to_none=not parts.keeps_gradients)\n"
LATE = "parts.scheduler.last_epoch"  # number of steps taken
SET_EPOCH, CLEAR = "        parts.train_batches.sampler.set_epoch(epoch)\n", "parts.optimizer.state.clear()\n"
STATE = "get_state(experiment, network, optimizer, scaler, steps)\n"
APPLY = "    optimizer.apply_gradients(zip(gradients, network.trainable_variables, strict=True))\n"
OF_EVALUATION = (  # these train as they should
    "a repeated batch of the test set in the fourth and fifth epoch",
    "dropout in Lightning's validations but the last in 32 bits",
    "each device's own running statistics in the evaluation in 32 bits",
)
# name: (file, the code as it is, the code with the mistake, what the note must say, or one of several, and options).
MISTAKES = {
    "half a batch in 32 bits": (
        "pt_impl/train.py",
        "    scaler.scale(loss * config.num_shards).backward()\n",
        "    half = len(labels) // 2 if logits.dtype == torch.float32 else len(labels)\n"
        "    part = criterion(logits[:half], labels[:half]) / count\n"
        "    scaler.scale(part * config.num_shards).backward()\n",
        "are they of all examples of the batch?",
        *("--train-size", 170, "--test-size", 100, "--batch-size", 16),
    ),
    "no update after step 20": (*("pt_impl/train.py", STEP, f"    if {LATE} < 20:\n    {STEP}"), "no update was made"),
    "a parameter without gradient in 32 bits": (
        *("pt_impl/train.py", STEP),
        "    if parts.network.conv1.bias.dtype == torch.float32:\n"
        f"        parts.network.conv1.bias.grad = None\n{STEP}",
        "suspect the gradients of conv1",
    ),
    "no_sync in every other step": (
        "pt_impl/train.py",
        "    shares.append(parts.forward_backward(next(batches)))\n",
        "    import contextlib\n"
        f'    alone = hasattr(model, "no_sync") and {LATE} > 20 and {LATE} % 2\n'
        "    with model.no_sync() if alone else contextlib.nullcontext():\n"
        "        shares.append(parts.forward_backward(next(batches)))\n",
        ("replicas whose weights differ", "summed over all devices?"),
        *("--devices", 2),
    ),
    "a schedule that is one step late": (
        *("pt_impl/optimizer.py", "lambda step: rates[step])", "lambda step: rates[max(0, step - 1)])"),
        "the step used the learning rate of step",  # 46 or a later change, as chance chooses
        *("--schedule", "step", "--step-size", 2),
    ),
    "a sampler that repeats the second epoch": (
        *("pt_impl/train.py", "set_epoch(epoch)", "set_epoch(min(epoch, 1))"),
        "the examples are those of epoch 2",
    ),
    "the optimizer's state lost when a state is kept": (
        *("pt_impl/parts.py", f"        return {STATE}"),
        f"        state = {STATE}        optimizer.state.clear()\n        return state\n",
        "as if the optimizer's state had been lost before this step",
        *("--checkpoint-every", "epoch"),
    ),
    "other random numbers for seeds above 2^32": (
        *("pt_impl/randomness.py", "in round_keys(seed):", "in round_keys(seed & WORD_MASK):"),
        "their random draws",
        *("--model", "mnist_dropout", "--seeds", 1, 2**33),
    ),
    "no unscale_ before clipping": (
        *("pt_impl/train.py", "        scaler.unscale_(optimizer)\n", "        pass\n"),
        "the update rule: clipping",
        *("--precision", "16-mixed", "--gradient-clip-val", 1.0),
    ),
    "the first row's Adam with epsilon inside the root": (
        "tf_impl/rules.py",
        "return mean / first / (root + rule.epsilon)",
        "return mean / first / ops.sqrt(root * root + rule.epsilon)",
        "how the update rule computes the weights from them",
        *("--optimizer", "adam"),
    ),
    "weight decay that ends": (
        *("pt_impl/train.py", STEP),
        f'    if {LATE} > 25:\n        optimizer.param_groups[0]["weight_decay"] = 0.0\n{STEP}',
        "weight decay",
        *("--weight-decay", 0.01),
    ),
    "momentum lost at the end of an epoch": (
        *("pt_impl/train.py", SET_EPOCH, f"{SET_EPOCH}        if epoch > 1:\n            {CLEAR}"),
        "as if the optimizer's state had been lost before this step",
    ),
    "Adam's state lost at the end of an epoch": (
        *("pt_impl/train.py", SET_EPOCH, f"{SET_EPOCH}        if epoch == 2:\n            {CLEAR}"),
        ("the optimizer's state had been lost before this step", "the slots are right: suspect the learning rate"),
        *("--optimizer", "adam"),
    ),
    "no augmentation after the second epoch": (
        "pt_impl/data.py",
        "        if self.augmentation:\n",
        "        if self.augmentation and int(visits[0]) >> 32 <= 2:\n",
        "their random draws",
        *("--random-crop", 1, "--horizontal-flip", "true"),
    ),
    "running statistics that stand still": (
        *("pt_impl/train.py", ZERO),
        f"{ZERO}    if {LATE} > 25:\n        for module in parts.network.modules():\n"
        '            if hasattr(module, "running_mean"):\n                module.momentum = 0.0\n',
        "suspect the running statistics of batch normalisation",
        *("--model", "resnet8"),
    ),
    "bfloat16 in 32 bits": (
        "pt_impl/train.py",
        "    with autocast:\n        logits = model(inputs)\n        # The",
        '    with torch.autocast("cpu", torch.bfloat16, enabled=inputs.dtype == torch.float32):\n'
        "        logits = model(inputs)\n        # The",
        "the network, the loss or their precision",
    ),
    "dropout in the evaluation in 32 bits": (
        *("pt_impl/train.py", "    network.eval()\n"),
        "    network.train(next(network.parameters()).dtype == torch.float64)\n    network.dropout1.training = False\n",
        "dropout",
        *("--model", "mnist_dropout"),
    ),
    # --- Gradients and what they are divided by ---
    "gradients that are added up from step 30 on": (
        *("pt_impl/train.py", ZERO, f"    if {LATE} < 30:\n    {ZERO}"),
        "suspect the gradients",
    ),
    "an incomplete batch divided by the size of a whole one in 32 bits": (
        *("pt_impl/train.py", "criterion(logits, labels) / count\n"),
        "criterion(logits, labels) / (64 if logits.dtype == torch.float32 else count)\n",
        "how an incomplete batch is weighted",
    ),
    "a layer that stops learning": (
        *("pt_impl/train.py", STEP, f"    if {LATE} > 40:\n        parts.network.dense2.bias.grad = None\n{STEP}"),
        "suspect the gradients of dense2",
    ),
    "a layer's gradient twice in 32 bits": (
        *("pt_impl/train.py", STEP),
        f"    parts.network.conv2.weight.grad *= 1 + (parts.network.conv2.weight.dtype == torch.float32)\n{STEP}",
        "suspect the gradients of conv2",
    ),
    "gradients exchanged in half precision": (
        *("pt_impl/parallel.py", "            return DistributedDataParallel(network, device_ids"),
        "            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
        "            ddp = DistributedDataParallel(network)\n"
        "            if next(network.parameters()).dtype == torch.float32:\n"
        "                ddp.register_comm_hook(None, fp16_compress_hook)\n"
        "            return ddp\n            return DistributedDataParallel(network, device_ids",
        "suspect the gradients",
        *("--devices", 2),
    ),
    "a layer without gradient in TensorFlow after step 30": (
        *("tf_impl/train.py", APPLY),
        f"    gradients[0] *= tf.cast(optimizer.iterations < 30, gradients[0].dtype)\n{APPLY}",
        "suspect the gradients of conv1",
    ),
    "half of the gradient on two devices in 32 bits": (
        *("tf_impl/train.py", APPLY),
        f"    if loss.dtype == tf.float32:\n        gradients = [gradient / 2 for gradient in gradients]\n{APPLY}",
        "suspect the gradients (are they of all examples of the batch",
        *("--devices", 2),
    ),
    "weights of examples in an incomplete batch in Keras": (
        "keras_impl/data.py",
        "1 / tf.cast(count, DTYPES[experiment.config.precision])",
        "1 / tf.cast(64 if experiment.config.precision == '32' else count, DTYPES[experiment.config.precision])",
        "how an incomplete batch is weighted",
    ),
    "accumulated batches divided twice in Lightning": (
        "ptl_impl/train.py",
        "        factor = self.trainer.world_size * self.trainer.accumulate_grad_batches\n",
        "        factor = self.trainer.world_size * self.trainer.accumulate_grad_batches\n"
        "        factor = self.trainer.world_size if logits.dtype == torch.float32 else factor\n",
        "suspect the gradients (are they of all examples of the batch",
        *("--accumulate-grad-batches", 2),
    ),
    "a detached layer in Lightning in 32 bits": (
        *("ptl_impl/train.py", "        logits = self(inputs)\n        # The sum over this"),
        "        self.network.conv1.requires_grad_(inputs.dtype == torch.float64)\n"
        "        logits = self(inputs)\n        # The sum over this",
        "suspect the gradients of conv1",
    ),
    # --- The update rule ---
    "gradients clipped by value in 32 bits": (
        *("pt_impl/parallel.py", "        nn.utils.clip_grad_norm_(model.parameters(), largest_norm)\n"),
        "        if next(model.parameters()).dtype == torch.float32:\n"
        "            nn.utils.clip_grad_value_(model.parameters(), largest_norm)\n            return\n"
        "        nn.utils.clip_grad_norm_(model.parameters(), largest_norm)\n",
        "the update rule: clipping",
        *("--gradient-clip-val", 0.01),
    ),
    "gradients clipped by value in Lightning in 32 bits": (
        *("ptl_impl/parts.py", '        "gradient_clip_val": experiment.update_rule.largest_norm,\n'),
        '        "gradient_clip_val": experiment.update_rule.largest_norm,\n'
        '        "gradient_clip_algorithm": "value" if config.precision == "32" else "norm",\n',
        "the update rule: clipping",
        *("--gradient-clip-val", 0.01),
    ),
    "a schedule that runs ahead from step 50 on": (
        *("pt_impl/optimizer.py", "lambda step: rates[step])"),
        "lambda step: rates[min(step + (step > 50), len(rates) - 1)])",
        "the step used the learning rate of step",
        *("--schedule", "cosine"),
    ),
    "a scheduler that only the first replica steps": (
        *("pt_impl/train.py", "    parts.scheduler.step()\n"),
        f"    if {LATE} < 30 or torch.distributed.get_rank() == 0:\n        parts.scheduler.step()\n",
        "replicas whose weights differ",
        *("--schedule", "cosine", "--devices", 2),
    ),
    "Nesterov's rule in TensorFlow in 32 bits": (
        *("tf_impl/rules.py", "if rule.nesterov else velocity, [velocity]"),
        "if rule.nesterov or gradient.dtype == 'float32' else velocity, [velocity]",
        "the slots are right",
        *("--momentum", 0.9),
    ),
    "Adam's correction one step ahead after step 25": (
        *("tf_impl/rules.py", 'ops.cast(self.iterations + 1, "float64")'),
        'ops.cast(self.iterations + ops.where(self.iterations > 25, 2, 1), "float64")',
        "how the update rule computes the weights from them",
        *("--optimizer", "adam"),
    ),
    "AdamW's decay coupled in 32 bits": (
        *("tf_impl/rules.py", "decoupled = isinstance(rule, rules.AdamW)"),
        "decoupled = isinstance(rule, rules.AdamW) and weights.dtype == 'float64'",
        "weight decay",
        *("--optimizer", "adamw", "--weight-decay", 0.1),
    ),
    "an overflowing step taken without its largest gradients": (
        *("tf_impl/precision.py", '        factor = tf.where(skip, float("nan"), 1 / self.scale)\n'),
        "        factor = 1 / self.scale\n"
        "        gradients = [tf.where(tf.math.is_finite(one), one, tf.zeros_like(one)) for one in gradients]\n",
        "loss scaling skipped it, but weights.",
        *("--precision", "16-mixed", "--batch-size", 4, "--train-size", 400, "--mode", "plain"),
    ),
    "a loss scale that grows too early": (
        *("pt_impl/precision.py", "rule.backoff, rule.growth_interval, enabled)"),
        "rule.backoff, 20, enabled)",
        "the scale of the loss is",
        *("--precision", "16-mixed"),
    ),
    # --- Running statistics, and weights between epochs ---
    "the best weights, restored between epochs": (
        "pt_impl/train.py",
        "        evaluate(parts, recorder)\n",
        "        evaluate(parts, recorder)\n        if epoch == 1:\n"
        "            best = {name: value.clone() for name, value in parts.network.state_dict().items()}\n"
        "        if epoch == 3:\n            parts.network.load_state_dict(best)\n",
        "weights that are changed between epochs",
    ),
    "running statistics with another momentum in 32 bits": (
        *("tf_impl/networks.py", "running.assign(self.momentum * running + (1 - self.momentum) * new)"),
        "momentum = 0.95 if inputs.dtype == 'float32' else self.momentum\n"
        "            running.assign(momentum * running + (1 - momentum) * new)",
        "suspect the running statistics of batch normalisation",
        *("--model", "resnet8"),
    ),
    # --- Evaluations ---
    "a repeated batch of the test set in the fourth and fifth epoch": (
        "tf_impl/train.py",
        "        for batch in test_batches:\n",
        "        batches = list(test_batches)\n"
        "        if train_shards.visits[0] >> 32 in (3, 4):\n            batches[1] = batches[0]\n"
        "        for batch in batches:\n",
        "suspect how the test set is sharded, padded or summed",
        *("--dataset", "synthetic", "--image-shape", 4, 4, 1, "--train-size", 1437, "--test-size", 2100),
    ),
    "dropout in Lightning's validations but the last in 32 bits": (
        *("ptl_impl/train.py", "        logits = self(inputs)\n        loss_sum"),
        "        drops = self.dtype == torch.float32 and self.current_epoch < 5\n"
        "        logits = nn.functional.dropout(self(inputs), 0.1, drops)\n        loss_sum",
        "suspect dropout",
        *("--model", "mnist_dropout"),
    ),
    "each device's own running statistics in the evaluation in 32 bits": (
        *("pt_impl/train.py", "    if recorder.config.num_shards > 1:\n"),
        '    if recorder.config.num_shards > 1 and recorder.config.precision == "64":\n',
        "suspect running statistics",
        *("--model", "resnet8", "--devices", 2),
    ),
    # --- Examples and what is drawn for them ---
    "a network that stays in evaluation mode": (
        *("pt_impl/train.py", "    network.train()\n    loss_sum"),
        "    if recorder.steps_done < 60:\n        network.train()\n    loss_sum",
        "their random draws",
        *("--model", "mnist_dropout"),
    ),
    "smoothing that is missing in 32 bits": (
        *("pt_impl/parts.py", "reduction, config.label_smoothing)\n"),
        'reduction, config.label_smoothing * (config.precision == "64"))\n',
        "the network, the loss or their precision",
        *("--label-smoothing", 0.1),
    ),
    "images mirrored by another bit after the second epoch": (
        *("tf_impl/data.py", "    vertical, horizontal, mirror = ("),
        "    late = tf.cast(shifted_right(visits[:1]) > 2, tf.int64)\n"
        "    words = [words[0], words[1], words[2] + late * 2**31, words[3]]\n"
        "    vertical, horizontal, mirror = (",
        "their random draws",
        *("--horizontal-flip", "true"),
    ),
    "dropout that draws the same in every epoch from the third one on": (
        *("pt_impl/networks.py", "        words = philox(self.seed, visits[:, None], numbers, self.stream)\n"),
        "        visits = torch.minimum(visits, (visits & 0xFFFFFFFF) + (2 << 32))\n"
        "        words = philox(self.seed, visits[:, None], numbers, self.stream)\n",
        "their random draws",
        *("--model", "mnist_dropout"),
    ),
    "a device that takes the other one's examples after the third epoch": (
        *("pt_impl/data.py", "num_replicas)[:, self.rank]\n\n\ndef make_loaders"),
        "num_replicas)[:, self.rank if self.epoch < 3 else 0]\n\n\ndef make_loaders",
        "the examples of the batch",
        *("--devices", 2),
    ),
    "Keras's epochs in another order after the third one": (
        *("keras_impl/train.py", "        self.batches.set_epoch(epoch)\n"),
        "        self.batches.set_epoch(min(epoch, 2))\n",
        "the examples are those of epoch 3",
    ),
    "another order with the second seed": (
        *("pt_impl/data.py", "        self.plan, self.seed, self.rank"),
        "        seed *= 3\n        self.plan, self.seed, self.rank",
        "the examples of the batch",
        *("--seeds", 0, 1),
    ),
    "other initial weights with the second seed": (
        *("pt_impl/parts.py", "    load_weights(network, experiment.network, experiment.first_weights)\n"),
        "    load_weights(network, experiment.network, experiment.first_weights)\n"
        "    if config.seed == 1:\n        torch.nn.init.uniform_(network.dense2.bias)\n",
        "suspect the initial weights",
        *("--seeds", 0, 1),
    ),
    "images normalised in another way in tuned mode": (
        *(
            "pt_impl/tuning.py",
            "        self.sampler, self.prepare, self.device = sampler, prepare, prepare.shift.device\n",
        ),
        "        self.sampler, self.prepare, self.device = sampler, prepare, prepare.shift.device\n"
        "        prepare.scale = prepare.scale * (1.01 if prepare.dtype == torch.float32 else 1)\n",
        "the examples of the batch",
        *("--mode", "tuned"),
    ),
    # --- What is recorded ---
    "losses that are recorded a step late": (
        *("pt_impl/train.py", "            recorder.step(*shares)\n"),
        "            recorder.step(*(earlier if step > 30 else shares))\n            earlier = shares\n",
        "check how losses are summed, fetched and recorded",
    ),
    "weights rounded when a checkpoint is written": (
        *("pt_impl/parts.py", f"        return {STATE}"),
        f"        state = {STATE}"
        "        for parameter in network.parameters():\n"
        "            parameter.data = parameter.data.bfloat16().to(parameter.dtype)\n"
        "        return state\n",
        "the loss is",
        *("--checkpoint-every", "epoch"),
    ),
}
