// Checks the histories that the example `histories` wrote, and compares verdicts.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Thread   int     `json:"thread"`
	Key      uint64  `json:"key"`
	Saw      *uint64 `json:"saw"`
	Left     *uint64 `json:"left"`
	Called   int64   `json:"called"`
	Returned int64   `json:"returned"`
}

type file struct {
	Linearizable bool        `json:"linearizable"`
	History      []operation `json:"history"`
}

// A key's state: absent, or a value.
func show(value *uint64) string {
	if value == nil {
		return "absent"
	}
	return fmt.Sprint(*value)
}

var oneKey = porcupine.Model{
	Init: func() interface{} { return "absent" },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		op := output.(operation)
		return state.(string) == show(op.Saw), show(op.Left)
	},
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[uint64][]porcupine.Operation{}
		for _, op := range history {
			key := op.Output.(operation).Key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
}

func main() {
	paths, err := filepath.Glob(filepath.Join(os.Args[1], "*.json"))
	if err != nil || len(paths) == 0 {
		fmt.Fprintln(os.Stderr, "no histories in", os.Args[1])
		os.Exit(1)
	}
	disagreements := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		var recorded file
		if err := json.Unmarshal(text, &recorded); err != nil {
			panic(err)
		}
		var history []porcupine.Operation
		for _, op := range recorded.History {
			history = append(history, porcupine.Operation{
				ClientId: op.Thread, Input: nil, Output: op, Call: op.Called, Return: op.Returned,
			})
		}
		if porcupine.CheckOperations(oneKey, history) != recorded.Linearizable {
			fmt.Println("the checkers disagree on", path)
			disagreements++
		}
	}
	fmt.Printf("%d histories, %d disagreements\n", len(paths), disagreements)
	if disagreements > 0 {
		os.Exit(1)
	}
}
