// What Ollama's JavaScript client does, against a server's URL and one of its models, the arguments. Exits 0 when all of it held.
import assert from 'node:assert/strict'
import { Ollama } from 'ollama'

const [, , host, model] = process.argv
const ollama = new Ollama({ host })
const messages = [{ role: 'user', content: 'Tell me a long story.' }]
const options = { num_predict: 12, seed: 1, temperature: 0 }

const whole = await ollama.chat({ model, messages, options })
assert.equal(whole.done_reason, 'length')
assert.equal(whole.eval_count, 12)

let text = ''
for await (const part of await ollama.chat({ model, messages, options, stream: true })) text += part.message.content
assert.equal(text, whole.message.content)

const generated = await ollama.generate({ model, prompt: 'Once', options })
assert.ok(generated.response.length > 0 && generated.context.length > 12)
assert.equal((await ollama.embed({ model, input: ['a', 'b'] })).embeddings.length, 2)
assert.ok((await ollama.list()).models.some((each) => each.name === `${model}:latest`))
assert.ok((await ollama.show({ model })).capabilities.includes('completion'))
assert.ok((await ollama.ps()).models[0].expires_at)
assert.match((await ollama.version()).version, /^\d+\.\d+\.\d+$/)
await assert.rejects(ollama.chat({ model: 'nope', messages }), /model 'nope' not found/)
await assert.rejects(async () => {
  for await (const _ of await ollama.chat({ model: 'nope', messages, stream: true }));
}, /not found/)

const long = await ollama.generate({ model, prompt: 'Once', options: { num_predict: 5000, ignore_eos: true }, stream: true })
await assert.rejects(async () => {
  for await (const _ of long) long.abort()
}, { name: 'AbortError' })
